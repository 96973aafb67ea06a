#include "tokenizer/files/gguf_vocabulary.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/bpe/bpe_tokenizer.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/bpe/split_rules.h"
#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace tessera {
namespace {

// llama.cpp's name of rules that cut text, and whether it looks for whole pieces first.
struct PreTokenizer {
  SplitRules rules;
  bool whole_pieces_first;
  const char* name;
};

constexpr SplitRules kWords = {
    .contractions_in_any_case = true, .any_prefix = true, .max_digits = 3, .line_ends = true};

constexpr SplitRules WithDigits(SplitRules rules, int max_digits) {
  rules.max_digits = max_digits;
  return rules;
}

constexpr PreTokenizer kPreTokenizers[] = {
    {SplitRules{}, false, "gpt-2"},
    {SplitRules{.max_digits = 1, .numbers_apart = true}, false, "refact"},
    {kWords, true, "llama-bpe"},
    {kWords, false, "smaug-bpe"},
    {WithDigits(kWords, 1), false, "qwen2"},
    {SplitRules{.contractions_in_any_case = true,
                .any_prefix = true,
                .max_digits = 3,
                .line_ends = true,
                .whole_tail = true},
     false, "dbrx"},
};

int32_t Number(SentencePieceType type) { return static_cast<int32_t>(type); }

// Returns whether merges alone make each token that could be a piece of a text.
bool MergesMakeAllTokens(const BpeVocabulary& vocabulary) {
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.tokens[id].empty()) ids[vocabulary.tokens[id]] = static_cast<int32_t>(id);
  }
  const BpeMerges merges(vocabulary.merges);
  std::vector<int32_t> parts;
  for (const auto& [token, id] : ids) {
    const std::string_view text(token.data(), token.size());
    if (PieceLength(vocabulary.split, text) != text.size()) continue;
    parts.clear();
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = ids.find(token.substr(i, 1));
      if (byte == ids.end()) return false;
      parts.push_back(byte->second);
    }
    merges.Apply(parts, 0);
    if (parts.size() != 1 || parts[0] != id) return false;
  }
  return true;
}

absl::StatusOr<std::string> FindPreTokenizer(const BpeVocabulary& vocabulary) {
  const PreTokenizer* same_rules = nullptr;
  for (const PreTokenizer& known : kPreTokenizers) {
    if (known.rules != vocabulary.split) continue;
    if (known.whole_pieces_first == vocabulary.whole_pieces_first) return known.name;
    same_rules = &known;
  }
  if (same_rules == nullptr) {
    return absl::UnimplementedError("llama.cpp does not cut texts by the rules of this tokenizer");
  }
  if (MergesMakeAllTokens(vocabulary)) return same_rules->name;
  return absl::UnimplementedError(absl::StrCat(
      "llama.cpp, which cuts texts so as \"", same_rules->name,
      "\", does not take whole pieces first there, and merges do not make all tokens"));
}

// Sets a token, whose text may be any bytes.
absl::Status SetToken(int32_t id, std::string text, SentencePieceType type,
                      GgufVocabulary& vocabulary) {
  if (!IsValidUtf8(text)) {
    return absl::UnimplementedError(
        absl::StrCat("llama.cpp cannot have token ", id, ", whose text is not UTF-8"));
  }
  vocabulary.tokens[id] = std::move(text);
  vocabulary.types[id] = Number(type);
  return absl::OkStatus();
}

absl::Status Describe(const BpeVocabulary& bpe, GgufVocabulary& vocabulary) {
  if (bpe.alphabet != nullptr) {
    return absl::UnimplementedError(
        "a tokenizer.json of characters has no scores, by which llama.cpp merges pieces: give the "
        "tokenizer.model that it was made from");
  }
  if (bpe.normalizer.active()) {
    return absl::UnimplementedError("llama.cpp does not normalise texts as this tokenizer does");
  }
  vocabulary.model = "gpt2";
  TESSERA_ASSIGN_OR_RETURN(vocabulary.pre, FindPreTokenizer(bpe));
  std::vector<std::string> texts(bpe.tokens.size());
  for (size_t id = 0; id < bpe.tokens.size(); ++id) {
    for (const char byte : bpe.tokens[id]) {
      texts[id] += ByteLevelCharacter(static_cast<uint8_t>(byte));
    }
    if (texts[id].empty()) continue;
    TESSERA_RETURN_IF_ERROR(
        SetToken(static_cast<int32_t>(id), texts[id], SentencePieceType::kNormal, vocabulary));
  }
  for (const SpecialToken& token : bpe.unreachable) {
    TESSERA_RETURN_IF_ERROR(SetToken(token.id, token.text, SentencePieceType::kUnused, vocabulary));
  }
  for (const AddedToken& token : bpe.added) {
    TESSERA_RETURN_IF_ERROR(SetToken(
        token.id, token.text,
        token.special ? SentencePieceType::kControl : SentencePieceType::kUserDefined, vocabulary));
  }
  std::vector<BpeMerge> merges = bpe.merges;
  std::ranges::sort(merges, {}, &BpeMerge::rank);
  for (const BpeMerge& merge : merges) {
    vocabulary.merges.push_back(
        absl::StrCat(vocabulary.tokens[merge.left], " ", vocabulary.tokens[merge.right]));
  }
  return absl::OkStatus();
}

absl::Status Describe(const SentencePieceModel& model, GgufVocabulary& vocabulary) {
  constexpr float kUnusedScore = -10000;  // as llama.cpp's converter has it
  vocabulary.model = "llama";
  vocabulary.pre = "default";
  vocabulary.adds_space_prefix = model.add_dummy_prefix;
  vocabulary.scores.assign(vocabulary.tokens.size(), kUnusedScore);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePieceModel::Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    // Texts are compared with those before spaces are marked.
    const bool is_raw = piece.type == SentencePieceType::kUserDefined;
    TESSERA_RETURN_IF_ERROR(
        SetToken(id, is_raw ? WithSpaces(piece.text) : piece.text, piece.type, vocabulary));
    vocabulary.scores[i] = piece.score;
    if (piece.type == SentencePieceType::kUnknown) vocabulary.unknown = id;
  }
  return absl::OkStatus();
}

// llama.cpp ends where two tokens have one text.
absl::Status CheckDistinct(const GgufVocabulary& vocabulary) {
  std::set<std::string_view> texts;
  for (const std::string& token : vocabulary.tokens) {
    if (texts.insert(token).second) continue;
    return absl::UnimplementedError(
        absl::StrCat("llama.cpp cannot have two tokens of one text, \"", token, "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufVocabulary> DescribeForGguf(const Tokenizer& tokenizer, int64_t model_ids) {
  TESSERA_ASSIGN_OR_RETURN(const Vocabulary found, VocabularyOf(tokenizer));
  GgufVocabulary vocabulary = {.end_of_text = tokenizer.end_of_text(),
                               .begin_of_text = tokenizer.begin_of_text()};
  for (int64_t id = 0; id < model_ids; ++id) {
    vocabulary.tokens.push_back(absl::StrCat("[PAD", id, "]"));
  }
  vocabulary.types.assign(vocabulary.tokens.size(), Number(SentencePieceType::kUnused));
  TESSERA_RETURN_IF_ERROR(
      std::visit([&](const auto& known) { return Describe(known, vocabulary); }, found));
  TESSERA_RETURN_IF_ERROR(CheckDistinct(vocabulary));
  return vocabulary;
}

}  // namespace tessera
