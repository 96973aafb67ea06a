#ifndef TESSERA_TOKENIZER_FILES_TIKTOKEN_H_
#define TESSERA_TOKENIZER_FILES_TIKTOKEN_H_

// The vocabularies of tiktoken: a line "BASE64 RANK" for each token. A file specifies neither how
// text is split nor which special tokens there are; the programs that use the well-known files
// know, and these files are recognised by their contents.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// A program's knowledge about its file.
struct TiktokenEncoding {
  std::string name;
  SplitRules split;
  std::vector<SpecialToken> special;
  int32_t end_of_text = -1;
  std::optional<int32_t> begin_of_text;
};

// Returns whether `contents` begins with a line of a tiktoken file.
bool IsTiktokenFile(std::string_view contents);

// Returns the encoding of the file whose contents have this CRC-32C: GPT-2 (r50k), p50k, cl100k or
// Llama-3; nullopt for another one.
std::optional<TiktokenEncoding> FindTiktokenEncoding(uint32_t crc32c);

// Returns InvalidArgument if tokenizer_config.json beside a tiktoken file names a class that is not
// known to split text as the file's own program does.
absl::Status CheckTiktokenClass(const std::string& path, const std::string& tokenizer_class);

inline constexpr char kTiktokenName[] = "tokenizer.tiktoken";  // in Tokenizer::Files()

// Reads a tiktoken file. An `encoding` of nullopt is recognised. If several pairs make the same
// token, `merges` keeps the one that occurs. Errors: DataLoss, naming the line; InvalidArgument for
// a file that is not recognised.
absl::StatusOr<BpeVocabulary> ReadTiktoken(const std::string& path, const std::string& contents,
                                           std::optional<TiktokenEncoding> encoding = std::nullopt);

// Makes a tokenizer from a tiktoken file. Errors: those of ReadTiktoken() and of
// BpeTokenizer::Create().
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTiktoken(
    const std::string& path, const std::string& contents,
    std::optional<TiktokenEncoding> encoding = std::nullopt);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_TIKTOKEN_H_
