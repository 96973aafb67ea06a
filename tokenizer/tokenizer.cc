#include "tokenizer/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tokenizer/text_cut.h"

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

}  // namespace tessera
