#include "convert/internevo/names.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::ckpt::convert {
namespace {

constexpr size_t kMaxDigits = 6;

// The number that the text begins with, before a dot. Removes both.
std::optional<int64_t> ConsumeNumber(std::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > kMaxDigits || digits == text.size() || text[digits] != '.') {
    return std::nullopt;
  }
  int64_t number = 0;
  for (const char digit : text.substr(0, digits)) number = 10 * number + (digit - '0');
  text.remove_prefix(digits + 1);
  return number;
}

}  // namespace

InternEvoLocalName ParseInternEvoName(std::string_view name) {
  constexpr std::string_view kWrapper = "model.";
  InternEvoLocalName parsed;
  parsed.chunk = ConsumeNumber(name).value_or(0);
  if (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
  const size_t dot = name.find('.');
  if (dot != name.npos) {
    std::string_view rest = name.substr(dot + 1);
    if (const std::optional<int64_t> layer = ConsumeNumber(rest)) {
      parsed.layer = *layer;
      parsed.before = std::string(name.substr(0, dot + 1));
      parsed.after = "." + std::string(rest);
      return parsed;
    }
  }
  parsed.before = std::string(name);
  return parsed;
}

void InternEvoLayers::Add(int64_t stage, const InternEvoLocalName& name) {
  std::set<int64_t>& layers = layers_[{name.chunk, stage}];
  if (name.layer >= 0) layers.insert(name.layer);
}

int64_t InternEvoLayers::chunks() const {
  return layers_.empty() ? 1 : layers_.rbegin()->first.first + 1;
}

absl::StatusOr<std::string> InternEvoLayers::GlobalName(int64_t stage,
                                                        const InternEvoLocalName& name) const {
  if (name.layer < 0) return name.before;
  int64_t number = name.layer;
  for (const auto& [place, layers] : layers_) {
    const auto count = static_cast<int64_t>(layers.size());
    if (count > 0 && *layers.rbegin() != count - 1) {
      return absl::DataLossError(absl::StrCat("stage ", place.second, " has ", count,
                                              " layers in chunk ", place.first,
                                              ", but also number ", *layers.rbegin()));
    }
    if (place >= std::pair(name.chunk, stage)) break;
    number += count;
  }
  return absl::StrCat(name.before, number, name.after);
}

}  // namespace tessera::ckpt::convert
