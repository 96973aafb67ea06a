#ifndef TESSERA_TOKENIZER_FILES_JSON_FILES_H_
#define TESSERA_TOKENIZER_FILES_JSON_FILES_H_

// GPT-2's vocab.json and merges.txt, Hugging Face's tokenizer.json and tokenizer_config.json, and
// their common parts: sections that name themselves in messages, tokens with their ids, and pairs
// of tokens.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tokenizer/bpe/added_tokens.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Returns a value for a message; long or nested ones are shortened.
std::string JsonInWords(const nlohmann::json& json);

// One object of a JSON file and its place, for messages. Refers to the JSON.
class JsonSection {
 public:
  JsonSection(std::string path, std::string name, const nlohmann::json& json)
      : path_(std::move(path)), name_(std::move(name)), json_(json) {}

  const nlohmann::json& json() const { return json_; }
  bool is_null() const { return json_.is_null(); }

  // Returns a member; null without such a member.
  JsonSection operator[](const char* member) const;
  JsonSection At(size_t index) const;
  size_t size() const { return json_.is_array() ? json_.size() : 0; }

  // Returns the text of a string; "" for any other value.
  std::string text() const { return json_.is_string() ? json_.get<std::string>() : ""; }
  std::string type() const { return (*this)["type"].text(); }
  bool is_true() const { return json_.is_boolean() && json_.get<bool>(); }
  // Returns true for null, false, 0 and "".
  bool is_off() const { return json_.is_null() || json_ == false || json_ == 0 || json_ == ""; }

  // Returns the members of {"type": "Sequence", `list`: [...]}, or the section itself if it has
  // another type; nothing for null.
  std::vector<JsonSection> Steps(const char* list) const;

  // Returns InvalidArgument, naming the section and its value.
  absl::Status NotSupported() const;
  // Returns DataLoss, naming the section, what was expected and its value.
  absl::Status Bad(std::string_view expected) const;
  // Refuses members that are not listed, since they may change what the tokenizer does.
  absl::Status AllowOnly(const std::set<std::string>& members) const;

 private:
  std::string path_;
  std::string name_;
  const nlohmann::json& json_;
};

// Limit of the ids that a file may leave out, so that no table is much larger than its file.
inline constexpr int64_t kMaxIdGap = 1 << 16;

// Tokens as they are written in the file, and their ids.
using TokenIds = absl::flat_hash_map<std::string, int32_t>;

// Reads a table of tokens. Errors: DataLoss, naming the token.
absl::StatusOr<TokenIds> ReadTokenIds(const std::string& path, const nlohmann::json& vocabulary);

// Fills in tokens and unreachable ones, from the alphabet of ByteLevelCharacter(): a token with a
// character outside it stands for its own characters, and encoding never yields it.
void AddByteLevelTokens(const TokenIds& ids, BpeVocabulary& vocabulary);

// Fills in tokens that are written as they are, with U+2581 for a space and <0x0A> for a byte.
void AddPlainTokens(const TokenIds& ids, BpeVocabulary& vocabulary);

// Appends the merge of two tokens, of the next rank. Errors: DataLoss if one of the tokens is
// empty, or if one of them or the merged one is not in the vocabulary.
absl::Status AddMerge(const std::string& path, const TokenIds& ids, std::string_view left,
                      std::string_view right, std::vector<BpeMerge>& merges);

inline constexpr char kTokenizerConfigName[] = "tokenizer_config.json";  // in Tokenizer::Files()

// The fields of tokenizer_config.json and added_tokens.json beside a vocabulary that are used here.
// Empty: not set.
struct TokenizerConfig {
  std::string contents;
  std::string tokenizer_class;
  std::string eos_token;
  std::optional<bool> add_prefix_space;
  std::vector<SpecialToken> added;  // must be among the vocabulary's added tokens
};

// Parses tokenizer_config.json. Errors: DataLoss, naming the file; InvalidArgument for added tokens
// that are found in another way than here.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& path,
                                                     const std::string& contents);

// Adds the tokens of added_tokens.json to `config`. Errors: DataLoss, naming the file.
absl::Status ParseAddedTokens(const std::string& path, const std::string& contents,
                              TokenizerConfig& config);

// Returns InvalidArgument, naming the field, if transformers would give text other ids because of
// the configuration: with a space before it, or with tokens that the vocabulary does not add.
absl::Status CheckConfig(const std::string& path, const BpeVocabulary& vocabulary,
                         const TokenizerConfig& config);

// Returns the id of <|endoftext|> or <|end_of_text|>, whichever is among the added tokens; without
// either, the id of the configuration's eos_token, or else of </s>. InvalidArgument if all of them
// are missing.
absl::StatusOr<int32_t> FindEndOfText(const std::string& path, std::span<const AddedToken> added,
                                      const TokenizerConfig& config);

// Names of GPT-2's files in Tokenizer::Files(). The files do not specify pre-tokenisation, which is
// GPT-2's.
inline constexpr char kGpt2VocabularyName[] = "vocab.json";
inline constexpr char kGpt2MergesName[] = "merges.txt";

// Reads GPT-2's files. `path` is used in messages; `vocabulary` and `merges` are the contents of
// the two files. Errors: DataLoss, naming what is wrong; InvalidArgument for another tokenizer that
// has files of these names; those of FindEndOfText().
absl::StatusOr<BpeVocabulary> ReadGpt2Files(const std::string& path, const std::string& vocabulary,
                                            const std::string& merges,
                                            const TokenizerConfig& config = {});

// Makes a tokenizer from GPT-2's files. Errors: those of ReadGpt2Files() and of
// BpeTokenizer::Create().
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseGpt2Files(const std::string& path,
                                                             const std::string& vocabulary,
                                                             const std::string& merges,
                                                             const TokenizerConfig& config = {});

inline constexpr char kTokenizerJsonName[] = "tokenizer.json";  // in Tokenizer::Files()

// Reads a tokenizer.json of byte-level BPE (GPT-2, Llama-3 and the like) or of BPE of characters
// with a token for each byte (Llama-2, Mistral, SentencePiece's converted).
//
// `path` is used in messages. Every setting in the file is either implemented or refused. The
// pipeline is normalizers of normalizers.h; then, byte-level, one split of split_rules.h and the
// byte alphabet, or else Metaspace or nothing; then BPE. Its template's first token becomes
// begin_of_text(). Errors: DataLoss for a file that is not a tokenizer.json or contradicts itself;
// InvalidArgument naming the setting that is not supported; those of FindEndOfText() and
// CharacterAlphabet::Create().
absl::StatusOr<BpeVocabulary> ReadTokenizerJson(const std::string& path,
                                                const std::string& contents,
                                                const TokenizerConfig& config = {});

// Makes a tokenizer from a tokenizer.json. Errors: those of ReadTokenizerJson() and of
// BpeTokenizer::Create().
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTokenizerJson(
    const std::string& path, const std::string& contents, const TokenizerConfig& config = {});

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_FILES_JSON_FILES_H_
