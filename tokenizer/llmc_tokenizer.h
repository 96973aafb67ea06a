#ifndef TESSERA_TOKENIZER_LLMC_TOKENIZER_H_
#define TESSERA_TOKENIZER_LLMC_TOKENIZER_H_

// Tokenizer files in llm.c's format: the text of each id. A header of 256 little-endian int32, then
// the tokens.
//
//   [0] magic 20240328   [1] version 1 or 2   [2] count   [3] id of end of text (version 2)
//   then `count` times: uint8 length, that many bytes

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A tokenizer that can only decode, since the file does not specify how text is split into tokens.
class LlmcTokenizer : public Tokenizer {
 public:
  // Parses a file. `path` is used in messages. In version 1, which exists for GPT-2's vocabulary
  // only, the last id is the end of text. Errors: DataLoss with file, offset, expected and found.
  static absl::StatusOr<std::unique_ptr<LlmcTokenizer>> Parse(const std::string& path,
                                                              std::string_view contents);

  std::string_view kind() const override { return "llm.c"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(texts_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  std::string_view TokenText(int32_t id) const override;
  std::vector<TokenizerFile> Files() const override;

 private:
  std::vector<std::string> texts_;
  int32_t end_of_text_ = 0;
};

// Returns whether the contents begin with the magic number.
bool IsLlmcTokenizerFile(std::string_view contents);

inline constexpr char kLlmcTokenizerName[] = "tokenizer.bin";

// Returns a file of version 2. An empty token, which llm.c refuses, is written as U+FFFD. Errors:
// InvalidArgument if a token is longer than 255 bytes.
absl::StatusOr<std::string> LlmcTokenizerFile(const Tokenizer& tokenizer);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_LLMC_TOKENIZER_H_
