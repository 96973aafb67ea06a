#ifndef TESSERA_BASE_TEXT_H_
#define TESSERA_BASE_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Returns the text as Abseil takes it: Debian's build has a string_view of its own.
inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Returns the bytes of a text.
inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Joins items for a message: the first ten, then "and 146 more" if there are more.
inline std::string JoinFirst(const std::vector<std::string>& items, absl::string_view separator) {
  constexpr size_t kMost = 10;
  const size_t shown = std::min(items.size(), kMost);
  std::string text = absl::StrJoin(items.begin(), items.begin() + shown, separator);
  if (shown < items.size())
    absl::StrAppend(&text, separator, "and ", items.size() - shown, " more");
  return text;
}

// Returns a number and what it counts: "1 file", "2 files". The plural of `noun` ends with an s.
inline std::string Counted(int64_t count, std::string_view noun) {
  return absl::StrCat(count, " ", View(noun), count == 1 ? "" : "s");
}

// Returns how often something is done: "every step", "every 2 steps".
inline std::string EveryText(int64_t interval, std::string_view noun) {
  return absl::StrCat("every ", interval == 1 ? std::string(noun) : Counted(interval, noun));
}

// Returns random bits of the system, for names that no other process or machine makes.
uint64_t RandomBits();
// Returns so many random digits: "00c0ffee".
std::string RandomHex(size_t digits);

// Returns the edit distance in which a swap of neighbours counts once, as a typing error does. Time
// and memory: the product of the sizes.
int TypingDistance(std::string_view a, std::string_view b);

// Well-formed UTF-8 according to RFC 3629: no overlong forms, no surrogates, nothing above
// U+10FFFF.

// Returns the length in bytes of the first character of `text`; 0 if it is not well-formed or
// `text` is empty.
size_t Utf8Length(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Returns the text as a terminal may safely show it, whoever wrote it. Escapes what a terminal
// would obey instead of showing it, and returns any other text unchanged:
// - Control characters except line breaks and tabs, and characters that turn the direction of the
//   text around or break lines: \u001b. In a string of JSON, this is the same character.
// - Bytes that are not UTF-8: \xff.
std::string Printable(std::string_view text);
// Does what Printable() does, and escapes line breaks and tabs, too.
std::string PrintableInLine(std::string_view text);

// Returns a text of a file for messages: escaped, and cut if it is long.
std::string Shown(std::string_view text);
// Returns the first of these texts of files for messages, each as Shown() has it.
std::string JoinShown(std::vector<std::string> texts);

// Returns the size of `text` without an incomplete character at its end.
size_t WholeCharacters(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_TEXT_H_
