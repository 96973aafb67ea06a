#ifndef TESSERA_BASE_TEXT_H_
#define TESSERA_BASE_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The text as Abseil takes it: Debian's build has a string_view of its own.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The bytes of a text.
inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// For messages: the first ten items, then "and 146 more" if there are more.
inline std::string JoinFirst(const std::vector<std::string>& items, absl::string_view separator) {
  constexpr size_t kMost = 10;
  const size_t shown = std::min(items.size(), kMost);
  std::string text = absl::StrJoin(items.begin(), items.begin() + shown, separator);
  if (shown < items.size())
    absl::StrAppend(&text, separator, "and ", items.size() - shown, " more");
  return text;
}

// Edit distance in which a swap of neighbours counts once, as a typing error does. Time and memory:
// the product of the sizes.
int TypingDistance(std::string_view a, std::string_view b);

// Well-formed UTF-8 according to RFC 3629: no overlong forms, no surrogates, nothing above
// U+10FFFF.

// Length in bytes of the first character of `text`; 0 when that is not well-formed or when text is
// empty.
size_t Utf8Length(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Returns the text as a terminal may show it, whoever has written it. Escapes what a terminal would
// obey instead of showing it, and returns any other text unchanged:
// - Control characters except line breaks and tabs, and characters that turn the direction of the
//   text around or break lines: \u001b. In a string of JSON, this is the same character.
// - Bytes that are not UTF-8: \xff.
std::string Printable(std::string_view text);
// The same within a line: line breaks and tabs are escaped, too.
std::string PrintableInLine(std::string_view text);

// The size of `text` without a character at its end that is only begun.
size_t WholeCharacters(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_TEXT_H_
