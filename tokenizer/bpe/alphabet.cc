#include "tokenizer/bpe/alphabet.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"

namespace tessera {
namespace {

// Returns the length of the first character. Bytes that are not UTF-8 count as characters.
size_t CharacterLength(std::string_view text) { return std::max<size_t>(Utf8Length(text), 1); }

uint32_t Number(std::string_view character) {
  uint32_t number = 0;
  for (const char byte : character) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

uint32_t FirstNumber(std::string_view text) {
  return Number(text.substr(0, CharacterLength(text)));
}

uint32_t LastNumber(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return Number(text.substr(begin));
}

uint64_t PairOf(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

constexpr int kCharacters = 0x100 + 68;  // the alphabet lies below this code point

struct Alphabet {
  std::array<uint16_t, 256> character = {};    // by byte
  std::array<int16_t, kCharacters> byte = {};  // by code point; -1: not in the alphabet
};

constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet.character[byte] = static_cast<uint16_t>(IsPrintable(byte) ? byte : next++);
    alphabet.byte[alphabet.character[byte]] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

int ParseBytePiece(std::string_view text) {
  int value = -1;
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with(">")) return -1;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  return error == std::errc() && end == text.data() + 5 ? value : -1;
}

std::string WithSpaces(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const bool space = piece.starts_with(kSpaceMark);
    text += space ? ' ' : piece.front();
    piece.remove_prefix(space ? kSpaceMark.size() : 1);
  }
  return text;
}

std::string WithSpaceMarks(std::string_view text) {
  std::string piece;
  piece.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      piece += kSpaceMark;
    } else {
      piece += c;
    }
  }
  return piece;
}

absl::StatusOr<std::shared_ptr<const ByteAlphabet>> ByteAlphabet::Create(
    const std::string& path, std::span<const std::string> tokens, const SplitRules& split) {
  const std::shared_ptr<ByteAlphabet> alphabet(new ByteAlphabet(split));
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() != 1) continue;
    alphabet->ids_[static_cast<uint8_t>(tokens[id][0])] = static_cast<int32_t>(id);
  }
  const auto* missing = std::ranges::find(alphabet->ids_, -1);
  if (missing == alphabet->ids_.end()) return alphabet;
  return absl::InvalidArgumentError(absl::StrCat(path, ": the vocabulary has no token for byte ",
                                                 missing - alphabet->ids_.begin(),
                                                 ", so that text would be lost"));
}

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
    const uint32_t right = FirstNumber(texts.at(merge.right));
    if (cut_before_space && right == space) continue;
    alphabet->AddPair(LastNumber(texts.at(merge.left)), right);
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

std::string ByteLevelCharacter(uint8_t byte) {
  const int code = kAlphabet.character[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::optional<std::string> ByteLevelDecode(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    int code = static_cast<uint8_t>(token[i++]);
    if (code >= 0x80) {
      const bool two = code >= 0xC2 && code < 0xE0 && i < token.size() && (token[i] & 0xC0) == 0x80;
      if (!two) return std::nullopt;
      code = (code & 0x1F) << 6 | (token[i++] & 0x3F);
    }
    if (code >= kCharacters || kAlphabet.byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[code]);
  }
  return bytes;
}

}  // namespace tessera
