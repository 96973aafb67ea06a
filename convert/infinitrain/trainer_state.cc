#include "convert/infinitrain/trainer_state.h"

#include <cstddef>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace tessera::ckpt::convert {

std::optional<int64_t> FindInfiniTrainNumber(std::string_view text, std::string_view key) {
  const std::string quoted = '"' + std::string(key) + '"';
  const size_t begin = text.find(quoted);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + quoted.size());
  if (text.find(quoted) != std::string_view::npos) return std::nullopt;
  text = text.substr(0, text.find_first_of(",\n}"));
  absl::string_view value = absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  int64_t number = 0;
  if (value.empty() || value.front() != ':') return std::nullopt;
  value.remove_prefix(1);
  if (!absl::SimpleAtoi(value, &number)) return std::nullopt;
  return number;
}

}  // namespace tessera::ckpt::convert
