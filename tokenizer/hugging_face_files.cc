#include "tokenizer/hugging_face_files.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/end_of_text.h"
#include "tokenizer/gpt2_files.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/split_rules.h"
#include "tokenizer/tiktoken.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer_json_writer.h"

namespace tessera {
namespace {

class Files {
 public:
  explicit Files(std::vector<TokenizerFile> files) : files_(std::move(files)) {}

  // Null where there is none.
  const std::string* Find(std::string_view name) const {
    const auto found = std::ranges::find(files_, name, &TokenizerFile::name);
    return found == files_.end() ? nullptr : &found->contents;
  }

 private:
  std::vector<TokenizerFile> files_;
};

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

absl::StatusOr<std::string> TokenizerJson(const Tokenizer& tokenizer, const Files& files) {
  if (const std::string* json = files.Find(kTokenizerJsonName); json != nullptr) return *json;
  if (ByteTokenizer::Matches(tokenizer)) return WriteTokenizerJson(ByteVocabulary());
  if (const std::string* ranks = files.Find(kTiktokenName); ranks != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const BpeVocabulary vocabulary, ReadTiktoken(kTiktokenName, *ranks));
    return WriteTokenizerJson(vocabulary);
  }
  if (const std::string* ids = files.Find(kGpt2VocabularyName); ids != nullptr) {
    TokenizerConfig config;
    if (const std::string* contents = files.Find(kTokenizerConfigName); contents != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(config, ParseTokenizerConfig(kTokenizerConfigName, *contents));
    }
    TESSERA_ASSIGN_OR_RETURN(
        const BpeVocabulary vocabulary,
        ReadGpt2Files(kGpt2VocabularyName, *ids, *files.Find(kGpt2MergesName), config));
    return WriteTokenizerJson(vocabulary);
  }
  if (const std::string* contents = files.Find(kSentencePieceName); contents != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const SentencePieceModel model,
                             ParseSentencePieceModel(kSentencePieceName, *contents));
    if (SentencePieceTokenizer::IsLossless(model)) return WriteTokenizerJson(model);
    return absl::UnimplementedError(
        "a SentencePiece model that is unigram, normalises text or has pieces of its user's cannot "
        "be written as tokenizer.json; transformers converts tokenizer.model itself");
  }
  return absl::UnimplementedError(
      "a tokenizer.bin of llm.c does not say how text is encoded: give the files that it was made "
      "from");
}

// The text by which the files name a token.
std::string TextOf(const Tokenizer& tokenizer, const Files& files, int32_t id) {
  const std::string* contents = files.Find(kSentencePieceName);
  if (contents == nullptr) return std::string(tokenizer.TokenText(id));
  return ParseSentencePieceModel(kSentencePieceName, *contents)->pieces[id].text;
}

}  // namespace

absl::StatusOr<std::vector<TokenizerFile>> HuggingFaceFiles(const Tokenizer& tokenizer) {
  const Files files(tokenizer.Files());
  TESSERA_ASSIGN_OR_RETURN(std::string json, TokenizerJson(tokenizer, files));
  const int32_t end = tokenizer.end_of_text();
  const int32_t begin = tokenizer.begin_of_text().value_or(end);
  std::vector<TokenizerFile> result = {{kTokenizerJsonName, std::move(json)}};
  if (const std::string* config = files.Find(kTokenizerConfigName); config != nullptr) {
    result.push_back({kTokenizerConfigName, *config});
  } else {
    const nlohmann::ordered_json tokens = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                           {"bos_token", TextOf(tokenizer, files, begin)},
                                           {"eos_token", TextOf(tokenizer, files, end)},
                                           {"clean_up_tokenization_spaces", false}};
    result.push_back({kTokenizerConfigName, tokens.dump(2) + "\n"});
  }
  const nlohmann::ordered_json generation = {{"bos_token_id", begin}, {"eos_token_id", end}};
  result.push_back({"generation_config.json", generation.dump(2) + "\n"});
  return result;
}

}  // namespace tessera
