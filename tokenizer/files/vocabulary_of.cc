#include "tokenizer/files/vocabulary_of.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files/json_files.h"
#include "tokenizer/files/tiktoken.h"

namespace tessera {
namespace {

BpeVocabulary ByteVocabulary() {
  const ByteTokenizer tokenizer;
  BpeVocabulary vocabulary;
  for (int32_t byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(tokenizer.TokenText(byte));
  }
  vocabulary.split = *FindSplitRules(kGpt2Regex);
  vocabulary.added = {
      {.text = std::string(kEndOfTextMarker), .id = tokenizer.end_of_text(), .special = true}};
  return vocabulary;
}

absl::StatusOr<TokenizerConfig> ConfigIn(const TokenizerFiles& files) {
  const std::string* contents = files.Find(kTokenizerConfigName);
  if (contents == nullptr) return TokenizerConfig();
  return ParseTokenizerConfig(kTokenizerConfigName, *contents);
}

}  // namespace

const std::string* TokenizerFiles::Find(std::string_view name) const {
  const auto found = std::ranges::find(files_, name, &TokenizerFile::name);
  return found == files_.end() ? nullptr : &found->contents;
}

absl::StatusOr<Vocabulary> VocabularyOf(const Tokenizer& tokenizer) {
  const TokenizerFiles files(tokenizer.Files());
  if (ByteTokenizer::Matches(tokenizer)) return ByteVocabulary();
  TESSERA_ASSIGN_OR_RETURN(const TokenizerConfig config, ConfigIn(files));
  if (const std::string* json = files.Find(kTokenizerJsonName); json != nullptr) {
    return ReadTokenizerJson(kTokenizerJsonName, *json, config);
  }
  if (const std::string* ranks = files.Find(kTiktokenName); ranks != nullptr) {
    return ReadTiktoken(kTiktokenName, *ranks);
  }
  if (const std::string* ids = files.Find(kGpt2VocabularyName); ids != nullptr) {
    return ReadGpt2Files(kGpt2VocabularyName, *ids, *files.Find(kGpt2MergesName), config);
  }
  if (const std::string* contents = files.Find(kSentencePieceName); contents != nullptr) {
    return ParseSentencePieceModel(kSentencePieceName, *contents);
  }
  return absl::UnimplementedError(
      "a tokenizer.bin of llm.c does not say how text is encoded: give the files that it was made "
      "from");
}

}  // namespace tessera
