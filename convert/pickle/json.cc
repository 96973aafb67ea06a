#include "convert/pickle/json.h"

#include <cmath>
#include <string>

#include "base/text.h"

namespace tessera::ckpt::pickle {

nlohmann::json ScalarToJson(const Value& value) {
  if (const auto truth = value.AsBool()) return *truth;
  if (const auto number = value.AsInt()) return *number;
  if (const auto number = value.AsFloat()) {
    return std::isfinite(*number) ? nlohmann::json(*number) : nlohmann::json();
  }
  const auto text = value.AsText();
  if (text && text->size() > kMaxJsonTextBytes) return {};
  return text && IsValidUtf8(*text) ? nlohmann::json(std::string(*text)) : nlohmann::json();
}

}  // namespace tessera::ckpt::pickle
