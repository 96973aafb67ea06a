#ifndef TESSERA_TOKENIZER_FILES_HUGGING_FACE_FILES_H_
#define TESSERA_TOKENIZER_FILES_HUGGING_FACE_FILES_H_

// Writing of the files in which Hugging Face's programs find a tokenizer.

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Returns tokenizer.json of byte-level BPE. Preconditions: BpeTokenizer::Create() accepts the
// vocabulary, which has no normalizer, and no two merges have the same rank.
std::string WriteTokenizerJson(const BpeVocabulary& vocabulary);

// Returns tokenizer.json of a model. Precondition: SentencePieceTokenizer reads the model. Every
// valid UTF-8 text gets the same ids as from sentencepiece. Errors: Unimplemented for pieces that
// tokenizer.json cannot describe: user-defined ones, two pieces of one text, merged pieces of equal
// score, and pieces made of characters that are not pieces themselves.
absl::StatusOr<std::string> WriteTokenizerJson(const SentencePieceModel& model);

// Returns the files in which transformers finds a tokenizer beside a model: tokenizer.json,
// tokenizer_config.json and generation_config.json (where a generated text begins and ends). A
// tokenizer that was read from Hugging Face's files keeps them. The ids are the tokenizer's own for
// every valid UTF-8 text without U+2581.
//
// Errors: Unimplemented for a tokenizer that can only decode, and those of WriteTokenizerJson().
absl::StatusOr<std::vector<TokenizerFile>> HuggingFaceFiles(const Tokenizer& tokenizer);

// The contents of a tokenizer, to write it in files of other programs.

using Vocabulary = std::variant<BpeVocabulary, SentencePieceModel>;

// Returns the vocabulary of a tokenizer, read from its files once more. Errors: Unimplemented for a
// tokenizer that can only decode.
absl::StatusOr<Vocabulary> VocabularyOf(const Tokenizer& tokenizer);

// The files of a tokenizer, by their names.
class TokenizerFiles {
 public:
  explicit TokenizerFiles(std::vector<TokenizerFile> files) : files_(std::move(files)) {}

  // Returns the contents of a file; null if no file has this name.
  const std::string* Find(std::string_view name) const;

 private:
  std::vector<TokenizerFile> files_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_HUGGING_FACE_FILES_H_
