#include "tokenizer/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {
size_t Tokenizer::EncodablePrefix(std::string_view text) const { return LastCut(text); }

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", i, " to decode is ", ids[i], ", but the tokenizer has ", vocab_size(), " ids"));
    }
    text += TokenText(ids[i]);
  }
  return text;
}

size_t LastCut(std::string_view text) {
  if (text.empty()) return 0;
  const size_t line_end = text.rfind('\n');
  if (line_end != text.npos) return line_end + 1;
  size_t end = text.size();
  for (int back = 0; back < 3 && end > 1 && (text[end - 1] & 0xC0) == 0x80; ++back) --end;
  // `end` is at a lead byte, or past a whole character: a lead byte stays with the bytes that
  // follow it.
  return (text[end - 1] & 0xC0) == 0xC0 && end > 1 ? end - 1 : text.size();
}

}  // namespace tessera
