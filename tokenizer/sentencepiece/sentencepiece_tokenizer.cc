#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/bpe/alphabet.h"
#include "tokenizer/bpe/merges.h"

namespace tessera {
namespace {

// Words whose ids are cached; bounds the memory for any text.
constexpr size_t kMaxCachedWords = 1 << 17;
constexpr size_t kMaxCachedWordBytes = 64;

bool HasSpaceAfterOther(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ' ' && text[i - 1] != ' ') return true;
  }
  return false;
}

// Returns a feature of the model that is not supported; nullptr if there is nothing.
const char* Unsupported(const SentencePieceModel& model) {
  if (model.model_type == SentencePieceModelType::kUnigram) return "is of the type unigram";
  if (model.model_type != SentencePieceModelType::kBpe) return "is of the type word or char";
  if (model.normalizes) return "normalises text (precompiled_charsmap)";
  if (!model.byte_fallback) return "has no byte fallback";
  if (model.remove_extra_whitespaces) return "removes spaces (remove_extra_whitespaces)";
  if (!model.escape_whitespaces) return "does not mark spaces (escape_whitespaces)";
  if (model.whitespace_as_suffix) return "marks spaces after words (treat_whitespace_as_suffix)";
  const bool has_unused = std::ranges::any_of(
      model.pieces, [](const auto& piece) { return piece.type == SentencePieceType::kUnused; });
  return has_unused ? "has unused pieces" : nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Parse(
    const std::string& path, std::string contents) {
  TESSERA_ASSIGN_OR_RETURN(SentencePieceModel model, ParseSentencePieceModel(path, contents));
  if (const char* what = Unsupported(model); what != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": this SentencePiece model ", what,
        ", which is not supported: models of type BPE with byte fallback, which keep text as it "
        "is, are"));
  }
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  tokenizer->model_ = std::move(contents);
  tokenizer->byte_ids_.assign(256, -1);
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    TESSERA_RETURN_IF_ERROR(tokenizer->AddPiece(path, piece));
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (tokenizer->byte_ids_[byte] < 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": expected a piece for byte ", byte, ", found none"));
    }
  }
  tokenizer->dummy_prefix_ = model.add_dummy_prefix;
  TESSERA_RETURN_IF_ERROR(tokenizer->TakeEndsOfText(path, model));
  return tokenizer;
}

absl::Status SentencePieceTokenizer::AddPiece(const std::string& path,
                                              const SentencePieceModel::Piece& piece) {
  const int32_t id = static_cast<int32_t>(texts_.size());
  std::string text;
  if (piece.type == SentencePieceType::kByte) {
    const int byte = ParseBytePiece(piece.text);
    if (byte < 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": piece ", id, " expected to be a byte, found \"", piece.text, "\""));
    }
    text = static_cast<char>(byte);
    byte_ids_[byte] = id;
  } else if (piece.type == SentencePieceType::kNormal) {
    text = WithSpaces(piece.text);
    pieces_.insert({piece.text, {id, piece.score}});
    cut_before_space_ &= !HasSpaceAfterOther(text);
    cut_at_newline_ &= text.find('\n') == text.npos;
  } else if (piece.type == SentencePieceType::kUserDefined) {
    if (piece.text.empty() || !IsValidUtf8(piece.text)) {
      return absl::DataLossError(
          absl::StrCat(path, ": piece ", id, " expected to be a text in UTF-8"));
    }
    text = WithSpaces(piece.text);
    user_defined_.Add(piece.text, id);
  } else {
    text = piece.type == SentencePieceType::kUnknown ? kReplacementCharacter : "";
    special_.push_back({piece.text, id});
  }
  texts_.push_back(std::move(text));
  return absl::OkStatus();
}

absl::Status SentencePieceTokenizer::TakeEndsOfText(const std::string& path,
                                                    const SentencePieceModel& model) {
  const auto is_control = [&](int64_t id) {
    return id >= 0 && id < vocab_size() && model.pieces[id].type == SentencePieceType::kControl;
  };
  if (!is_control(model.eos_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an end-of-sentence control piece, found id ", model.eos_id));
  }
  if (is_control(model.bos_id)) begin_of_text_ = static_cast<int32_t>(model.bos_id);
  end_of_text_ = static_cast<int32_t>(model.eos_id);
  texts_[end_of_text_] = kEndOfTextMarker;
  special_.push_back({texts_[end_of_text_], end_of_text_});
  return absl::OkStatus();
}

const SentencePieceTokenizer::Piece* SentencePieceTokenizer::Find(std::string_view piece) const {
  const auto found = pieces_.find(View(piece));
  return found == pieces_.end() ? nullptr : &found->second;
}

void SentencePieceTokenizer::AppendBytes(std::string_view bytes, std::vector<int32_t>& ids) const {
  for (const char c : bytes) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

// Encodes by byte pairs: repeatedly merges the best-scored pair of neighbours that forms a piece,
// until no pair does.
std::vector<int32_t> SentencePieceTokenizer::EncodeWord(std::string_view word) const {
  ScoredMerges merges;
  for (size_t i = 0; i < word.size();) {
    const size_t length = Utf8Length(word.substr(i));
    merges.Add(word.substr(i, length));
    i += length;
  }
  merges.Run([&](std::string_view, std::string_view both) -> std::optional<float> {
    const Piece* piece = Find(both);
    return piece == nullptr ? std::nullopt : std::optional(piece->score);
  });
  std::vector<int32_t> ids;
  merges.ForEach([&](std::string_view text) {
    if (const Piece* piece = Find(text); piece != nullptr) {
      ids.push_back(piece->id);
    } else {
      // A space mark made from a space by this encoder must decode to a space.
      AppendBytes(text == kSpaceMark ? " " : text, ids);
    }
  });
  return ids;
}

void SentencePieceTokenizer::AppendWord(const std::string& word, WordIds& words,
                                        std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  const auto found = words.find(word);
  if (found != words.end()) {
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return;
  }
  std::vector<int32_t> word_ids = EncodeWord(word);
  ids.insert(ids.end(), word_ids.begin(), word_ids.end());
  if (word.size() > kMaxCachedWordBytes) return;
  if (words.size() >= kMaxCachedWords) words.clear();
  words.emplace(word, std::move(word_ids));
}

void SentencePieceTokenizer::AppendText(std::string_view prefix, std::string_view text,
                                        WordIds& words, std::vector<int32_t>& ids) const {
  std::string word(prefix);
  bool after_other = false;  // the word's last character is not a space
  const auto flush = [&] {
    AppendWord(word, words, ids);
    word.clear();
    after_other = false;
  };
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(character.size());
    if (length == 0 || character == kSpaceMark || (character == "\n" && cut_at_newline_)) {
      flush();
      AppendBytes(character, ids);
    } else if (character == " ") {
      if (after_other && cut_before_space_) flush();
      word += kSpaceMark;
      after_other = false;
    } else {
      word += character;
      after_other = true;
    }
  }
  flush();
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  WordIds words;
  const std::string_view prefix = dummy_prefix_ && !text.empty() ? kSpaceMark : "";
  if (user_defined_.empty()) {
    AppendText(prefix, text, words, ids);
    return ids;
  }
  const std::string marked = std::string(prefix) + WithSpaceMarks(text);
  const auto append = [&](size_t begin, size_t end) {
    AppendText("", WithSpaces(std::string_view(marked).substr(begin, end - begin)), words, ids);
  };
  size_t done = 0;
  for (auto match = user_defined_.Find(marked, 0); match.value >= 0;
       match = user_defined_.Find(marked, done)) {
    append(done, match.begin);
    ids.push_back(match.value);
    done = match.end;
  }
  append(done, marked.size());
  return ids;
}

size_t SentencePieceTokenizer::EncodablePrefix(std::string_view text) const {
  if (dummy_prefix_ || !user_defined_.empty()) return 0;
  for (size_t end = text.size(); end > 0; --end) {
    if (cut_at_newline_ && text[end - 1] == '\n') return end;
    const bool at_space = end < text.size() && text[end] == ' ' && text[end - 1] != ' ';
    if (cut_before_space_ && at_space) return end;
  }
  return 0;
}

absl::StatusOr<std::string> SentencePieceTokenizer::Decode(std::span<const int32_t> ids) const {
  absl::StatusOr<std::string> text = Tokenizer::Decode(ids);
  if (text.ok() && dummy_prefix_ && text->starts_with(' ')) text->erase(0, 1);
  return text;
}

std::string_view SentencePieceTokenizer::TokenText(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return texts_[id];
}

}  // namespace tessera
