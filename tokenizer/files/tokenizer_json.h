#ifndef TESSERA_TOKENIZER_FILES_TOKENIZER_JSON_H_
#define TESSERA_TOKENIZER_FILES_TOKENIZER_JSON_H_

// Hugging Face's tokenizer.json, for byte-level BPE (GPT-2, Llama-3 and what is made like them) and
// for BPE of characters with a token for each byte (Llama-2, Mistral, SentencePiece's converted).

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/files/json_files.h"

namespace tessera {

inline constexpr char kTokenizerJsonName[] = "tokenizer.json";  // in Tokenizer::Files()

// `path` is used in messages. Every setting in the file is either implemented or refused: the
// pipeline is normalizers of text_normalizer.h and, byte-level, one split of split_rules.h and the
// byte alphabet, or else Metaspace or nothing; then BPE. Its template's first token becomes
// begin_of_text(). Errors: DataLoss for a file that is not a tokenizer.json or contradicts itself;
// InvalidArgument naming the setting that is not supported, and those of FindEndOfText and
// CharacterAlphabet::Create.
absl::StatusOr<BpeVocabulary> ReadTokenizerJson(const std::string& path,
                                                const std::string& contents,
                                                const TokenizerConfig& config = {});

// Errors: those of ReadTokenizerJson and of BpeTokenizer::Create.
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTokenizerJson(
    const std::string& path, const std::string& contents, const TokenizerConfig& config = {});

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_TOKENIZER_JSON_H_
