#ifndef TESSERA_TOKENIZER_FILES_VOCABULARY_OF_H_
#define TESSERA_TOKENIZER_FILES_VOCABULARY_OF_H_

// The contents of a tokenizer, to write it in files of other programs.

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

#endif  // TESSERA_TOKENIZER_FILES_VOCABULARY_OF_H_
