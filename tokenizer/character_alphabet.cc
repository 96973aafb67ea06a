#include "tokenizer/character_alphabet.h"

#include <algorithm>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "tokenizer/sentencepiece_model.h"

namespace tessera {
namespace {

// What is no UTF-8 counts as characters of one byte.
size_t CharacterLength(std::string_view text) { return std::max<size_t>(Utf8Length(text), 1); }

uint32_t Number(std::string_view character) {
  uint32_t number = 0;
  for (const char byte : character) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

uint32_t FirstCharacter(std::string_view text) {
  return Number(text.substr(0, CharacterLength(text)));
}

uint32_t LastCharacter(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return Number(text.substr(begin));
}

uint64_t PairOf(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

absl::StatusOr<std::shared_ptr<const CharacterAlphabet>> CharacterAlphabet::Create(
    const std::string& path, const absl::flat_hash_map<std::string, int32_t>& ids,
    std::span<const BpeMerge> merges, bool cut_before_space) {
  const std::shared_ptr<CharacterAlphabet> alphabet(new CharacterAlphabet);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(absl::StrFormat("<0x%02X>", byte));
    if (found == ids.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": the vocabulary has no token for byte ", byte, ", so that text would be lost"));
    }
    alphabet->byte_ids_[byte] = found->second;
  }
  alphabet->ascii_ids_.fill(-1);
  absl::flat_hash_map<int32_t, std::string_view> texts;
  for (const auto& [text, id] : ids) {
    texts[id] = text;
    if (CharacterLength(text) != text.size()) continue;
    const uint32_t character = Number(text);
    if (character < kAscii) {
      alphabet->ascii_ids_[character] = id;
    } else {
      alphabet->character_ids_[character] = id;
    }
  }
  const absl::flat_hash_set<int32_t> bytes(alphabet->byte_ids_.begin(), alphabet->byte_ids_.end());
  const uint32_t space = Number(kSpaceMark);
  for (const BpeMerge& merge : merges) {
    if (bytes.contains(merge.left) || bytes.contains(merge.right)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": merge ", merge.rank, " has the token of a byte, which is not supported"));
    }
    const uint32_t right = FirstCharacter(texts.at(merge.right));
    if (cut_before_space && right == space) continue;
    alphabet->AddPair(LastCharacter(texts.at(merge.left)), right);
  }
  return alphabet;
}

void CharacterAlphabet::AddPair(uint32_t left, uint32_t right) {
  if (left < kAscii && right < kAscii) {
    ascii_pairs_.set(left * kAscii + right);
  } else {
    pairs_.insert(PairOf(left, right));
  }
}

bool CharacterAlphabet::MayJoin(uint32_t left, uint32_t right) const {
  if (left < kAscii && right < kAscii) return ascii_pairs_.test(left * kAscii + right);
  return pairs_.contains(PairOf(left, right));
}

size_t CharacterAlphabet::PieceLength(std::string_view text) const {
  size_t length = CharacterLength(text);
  uint32_t last = Number(text.substr(0, length));
  while (length < text.size()) {
    const std::string_view rest = text.substr(length);
    const size_t next_length = CharacterLength(rest);
    const uint32_t next = Number(rest.substr(0, next_length));
    if (!MayJoin(last, next)) break;
    last = next;
    length += next_length;
  }
  return length;
}

int32_t CharacterAlphabet::TokenOf(uint32_t character) const {
  if (character < kAscii) return ascii_ids_[character];
  const auto found = character_ids_.find(character);
  return found == character_ids_.end() ? -1 : found->second;
}

void CharacterAlphabet::AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const {
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, CharacterLength(piece));
    piece.remove_prefix(character.size());
    if (const int32_t id = TokenOf(Number(character)); id >= 0) {
      ids.push_back(id);
      continue;
    }
    for (const char byte : character) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  }
}

}  // namespace tessera
