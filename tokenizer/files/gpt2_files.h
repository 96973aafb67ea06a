#ifndef TESSERA_TOKENIZER_FILES_GPT2_FILES_H_
#define TESSERA_TOKENIZER_FILES_GPT2_FILES_H_

// GPT-2's vocab.json and merges.txt. They say nothing about pre-tokenisation, which is GPT-2's.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/files/json_files.h"

namespace tessera {

// In Tokenizer::Files().
inline constexpr char kGpt2VocabularyName[] = "vocab.json";
inline constexpr char kGpt2MergesName[] = "merges.txt";

// `path` is used in messages; `vocabulary` and `merges` are the contents of the two files. Errors:
// DataLoss naming what is wrong; InvalidArgument for another tokenizer that has files of these
// names, and those of FindEndOfText.
absl::StatusOr<BpeVocabulary> ReadGpt2Files(const std::string& path, const std::string& vocabulary,
                                            const std::string& merges,
                                            const TokenizerConfig& config = {});

// Errors: those of ReadGpt2Files and of BpeTokenizer::Create.
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseGpt2Files(const std::string& path,
                                                             const std::string& vocabulary,
                                                             const std::string& merges,
                                                             const TokenizerConfig& config = {});

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_GPT2_FILES_H_
