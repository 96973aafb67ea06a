#include "tokenizer/bpe/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxCachedPieceBytes = 64;
constexpr size_t kMaxCacheSlots = 1 << 15;
constexpr size_t kTextBytesPerSlot = 16;

bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// True if `text` has a letter or a number before position `at`, and a space there.
bool IsCut(std::string_view text, size_t at) {
  if (!IsAsciiSpace(text[at])) return false;
  size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
  const Character before = FirstCharacter(text.substr(begin, at - begin));
  if (begin + before.length != at) return false;
  return before.kind == CharacterClass::kLetter || before.kind == CharacterClass::kNumber;
}

size_t LastWordEnd(std::string_view text) {
  for (size_t at = text.size(); at-- > 1;) {
    if (IsCut(text, at)) return at;
  }
  return 0;
}

// Remembers which ids of the output the pieces of a text have become. One slot for each hash: a new
// piece replaces an older one.
class PieceCache {
 public:
  explicit PieceCache(size_t text_bytes) {
    size_t slots = 1;
    while (slots < kMaxCacheSlots && slots * kTextBytesPerSlot < text_bytes) slots *= 2;
    slots_.resize(slots);
  }

  // Appends the ids of an equal piece and returns true, or notes that the ids of this one will be
  // appended next: Keep() must follow.
  bool Find(std::string_view piece, std::vector<int32_t>& ids) {
    slot_ = &slots_[absl::HashOf(View(piece)) & (slots_.size() - 1)];
    if (slot_->piece != piece) {
      slot_->piece = piece;
      slot_->begin = ids.size();
      return false;
    }
    const size_t end = ids.size();
    ids.resize(end + slot_->count);
    std::copy_n(ids.begin() + static_cast<int64_t>(slot_->begin), slot_->count,
                ids.begin() + static_cast<int64_t>(end));
    return true;
  }
  void Keep(const std::vector<int32_t>& ids) { slot_->count = ids.size() - slot_->begin; }

 private:
  struct Slot {
    std::string_view piece;
    size_t begin = 0;
    size_t count = 0;
  };
  std::vector<Slot> slots_;
  Slot* slot_ = nullptr;
};

absl::Status Refused(const std::string& path, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", View(reason)));
}

absl::Status CheckAdded(const std::string& path, const BpeVocabulary& vocabulary) {
  absl::flat_hash_map<int32_t, std::string> texts;
  for (const AddedToken& token : vocabulary.added) {
    if (token.text.empty()) return Refused(path, "an added token is empty");
    const auto [found, inserted] = texts.try_emplace(token.id, token.text);
    if (!inserted) {
      return Refused(
          path, absl::StrCat("id ", token.id, " is both ", found->second, " and ", token.text));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Create(const std::string& path,
                                                                   BpeVocabulary vocabulary) {
  // Tokens of characters decode U+2581 to a space.
  const bool normalizes = vocabulary.normalizer.active() || vocabulary.alphabet != nullptr;
  if (vocabulary.alphabet == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(vocabulary.alphabet,
                             ByteAlphabet::Create(path, vocabulary.tokens, vocabulary.split));
  }
  TESSERA_RETURN_IF_ERROR(CheckAdded(path, vocabulary));
  return std::unique_ptr<BpeTokenizer>(new BpeTokenizer(std::move(vocabulary), normalizes));
}

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary, bool normalizes)
    : alphabet_(std::move(vocabulary.alphabet)),
      merges_(vocabulary.merges),
      added_(std::move(vocabulary.added), vocabulary.normalizer),
      metaspace_(vocabulary.metaspace),
      drops_first_space_(vocabulary.drops_first_space),
      normalizes_(normalizes),
      cuts_(!normalizes),
      end_of_text_(vocabulary.end_of_text),
      begin_of_text_(vocabulary.begin_of_text),
      texts_(std::move(vocabulary.tokens)),
      files_(std::move(vocabulary.files)) {
  const size_t tokens = texts_.size();
  for (const AddedToken& token : added_.tokens()) {
    texts_.resize(std::max(texts_.size(), static_cast<size_t>(token.id) + 1));
    cuts_ = cuts_ && LastWordEnd(token.text) == 0;
  }
  for (size_t id = 0; id < tokens && vocabulary.whole_pieces_first; ++id) {
    if (!texts_[id].empty()) whole_pieces_.try_emplace(View(texts_[id]), static_cast<int32_t>(id));
  }
  for (const SpecialToken& token : vocabulary.unreachable) texts_[token.id] = token.text;
  for (const AddedToken& token : added_.tokens()) texts_[token.id] = token.text;
}

std::vector<SpecialToken> BpeTokenizer::special_tokens() const {
  std::vector<SpecialToken> tokens;
  for (const AddedToken& token : added_.tokens()) {
    if (token.special) tokens.push_back({token.text, token.id});
  }
  return tokens;
}

void BpeTokenizer::EncodePiece(std::string_view piece, std::vector<int32_t>& ids) const {
  const auto found = whole_pieces_.find(View(piece));
  if (found != whole_pieces_.end()) return ids.push_back(found->second);
  const size_t begin = ids.size();
  alphabet_->AppendTokens(piece, ids);
  merges_.Apply(ids, begin);
}

void BpeTokenizer::EncodeOrdinary(std::string_view text, std::vector<int32_t>& ids) const {
  PieceCache cache(text.size());
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, alphabet_->PieceLength(text));
    text.remove_prefix(piece.size());
    if (piece.size() > kMaxCachedPieceBytes) {
      EncodePiece(piece, ids);
    } else if (!cache.Find(piece, ids)) {
      EncodePiece(piece, ids);
      cache.Keep(ids);
    }
  }
}

void BpeTokenizer::EncodePart(std::string_view part, bool first, std::vector<int32_t>& ids) const {
  if (!metaspace_.has_value()) return EncodeOrdinary(part, ids);
  EncodeOrdinary(metaspace_->Apply(part, first), ids);
}

std::vector<int32_t> BpeTokenizer::EncodeText(std::string_view text, bool special) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  if (!added_.MayMatch(special)) {
    EncodePart(text, /*first=*/true, ids);
    return ids;
  }
  bool first = true;
  added_.Split(text, special, [&](std::string_view part, int32_t id) {
    if (id >= 0) {
      ids.push_back(id);
    } else {
      EncodePart(part, first, ids);
    }
    first = false;
  });
  return ids;
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(std::string_view text) const {
  return EncodeText(text, /*special=*/false);
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::EncodeWithSpecialTokens(
    std::string_view text) const {
  return EncodeText(text, /*special=*/true);
}

size_t BpeTokenizer::EncodablePrefix(std::string_view text) const {
  return cuts_ ? LastWordEnd(text) : 0;
}

absl::StatusOr<std::string> BpeTokenizer::Decode(std::span<const int32_t> ids) const {
  absl::StatusOr<std::string> text = Tokenizer::Decode(ids);
  if (text.ok() && drops_first_space_ && text->starts_with(' ')) text->erase(0, 1);
  return text;
}

std::string_view BpeTokenizer::TokenText(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return texts_[id];
}

}  // namespace tessera
