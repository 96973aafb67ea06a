#include "tokenizer/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeWithSpecialTokens(
    std::string_view text) const {
  const std::vector<SpecialToken> tokens = special_tokens();
  std::vector<int32_t> ids;
  size_t done = 0;
  for (size_t at = 0; at <= text.size();) {
    const SpecialToken* longest = nullptr;
    for (const SpecialToken& token : tokens) {
      const size_t size = longest == nullptr ? 0 : longest->text.size();
      if (token.text.size() > size && text.substr(at).starts_with(token.text)) longest = &token;
    }
    if (longest == nullptr && at++ < text.size()) continue;
    const size_t end = longest == nullptr ? text.size() : at;
    TESSERA_ASSIGN_OR_RETURN(const auto part, Encode(text.substr(done, end - done)));
    ids.insert(ids.end(), part.begin(), part.end());
    if (longest == nullptr) break;
    ids.push_back(longest->id);
    done = at += longest->text.size();
  }
  return ids;
}

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
