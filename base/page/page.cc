#include "base/page/page.h"

#include <cstddef>

namespace tessera {

std::string FillPage(std::string_view page, const nlohmann::json& data) {
  // Only ASCII: U+2028 and its like end lines in some parsers.
  const std::string text =
      data.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  const size_t place = page.find(kPageData);
  std::string filled(page.substr(0, place));
  filled.reserve(page.size() + text.size() + text.size() / 8);
  // In JSON these occur only within strings, where an escape stands for the same character.
  for (const char c : text) {
    if (c == '<') {
      filled += "\\u003c";
    } else if (c == '>') {
      filled += "\\u003e";
    } else if (c == '&') {
      filled += "\\u0026";
    } else {
      filled += c;
    }
  }
  return filled.append(page.substr(place + kPageData.size()));
}

}  // namespace tessera
