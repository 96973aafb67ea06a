#include "tokenizer/byte_alphabet.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<const ByteAlphabet>> ByteAlphabet::Create(
    const std::string& path, std::span<const std::string> tokens, const SplitRules& split) {
  const std::shared_ptr<ByteAlphabet> alphabet(new ByteAlphabet(split));
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() != 1) continue;
    alphabet->ids_[static_cast<uint8_t>(tokens[id][0])] = static_cast<int32_t>(id);
  }
  const auto* missing = std::ranges::find(alphabet->ids_, -1);
  if (missing == alphabet->ids_.end()) return alphabet;
  return absl::InvalidArgumentError(absl::StrCat(path, ": the vocabulary has no token for byte ",
                                                 missing - alphabet->ids_.begin(),
                                                 ", so that text would be lost"));
}

}  // namespace tessera
