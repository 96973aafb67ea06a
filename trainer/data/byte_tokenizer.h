#ifndef TESSERA_TRAINER_DATA_BYTE_TOKENIZER_H_
#define TESSERA_TRAINER_DATA_BYTE_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/tokenizer.h"

namespace tessera {

// One id per byte, and 256 for end of text: 257 ids. Lossless for any bytes. Saved as an llm.c
// tokenizer file.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 257;

  // True when `tokenizer` has exactly the ids of a ByteTokenizer.
  static bool Matches(const Tokenizer& tokenizer);

  std::string_view kind() const override { return "byte"; }
  int64_t vocab_size() const override { return kVocabSize; }
  int32_t end_of_text() const override { return 256; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  std::string_view TokenText(int32_t id) const override;
  absl::Status Save(const std::string& path) const override;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_BYTE_TOKENIZER_H_
