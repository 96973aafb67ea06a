#ifndef TESSERA_TOKENIZER_BPE_ALPHABET_H_
#define TESSERA_TOKENIZER_BPE_ALPHABET_H_

// What byte-pair encoding begins with: tokens of bytes or of characters, and how vocabulary files
// write bytes and spaces.

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "tokenizer/bpe/merges.h"
#include "tokenizer/bpe/split_rules.h"

namespace tessera {

// U+2581, which stands for a space inside pieces.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// "<0x0A>" -> 10; -1 for anything else.
int ParseBytePiece(std::string_view text);

// The text of a piece: U+2581 stands for a space.
std::string WithSpaces(std::string_view piece);

// A text as pieces have it: every space becomes U+2581.
std::string WithSpaceMarks(std::string_view text);

// What byte-pair encoding begins with: a text is cut into pieces, each of which is encoded on its
// own, and a piece into the tokens that merges join. Thread-safe.
class BpeAlphabet {
 public:
  virtual ~BpeAlphabet() = default;

  // The length of the first piece of a text that is not empty, in bytes; at least 1.
  virtual size_t PieceLength(std::string_view text) const = 0;
  virtual void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const = 0;
};

// A token for each byte, as in GPT-2 and Llama-3.
class ByteAlphabet final : public BpeAlphabet {
 public:
  // `tokens`: the bytes of each. `path` is used in messages. InvalidArgument: a byte has no token.
  static absl::StatusOr<std::shared_ptr<const ByteAlphabet>> Create(
      const std::string& path, std::span<const std::string> tokens, const SplitRules& split);

  size_t PieceLength(std::string_view text) const override {
    return tessera::PieceLength(split_, text);
  }
  void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const override {
    for (const char byte : piece) ids.push_back(ids_[static_cast<uint8_t>(byte)]);
  }

 private:
  explicit ByteAlphabet(const SplitRules& split) : split_(split) { ids_.fill(-1); }

  const SplitRules split_;
  std::array<int32_t, 256> ids_;
};

// A token for each character, and one for each byte of characters that the vocabulary lacks, as
// Hugging Face's tokenizers encode with the vocabularies of SentencePiece (Llama-2, Mistral).
//
// A text is cut wherever no merge can join the two characters, which changes no ids.
class CharacterAlphabet final : public BpeAlphabet {
 public:
  // `ids`: of the tokens as tokenizer.json writes them, bytes as <0x0A>. `cut_before_space`: U+2581
  // always begins a piece. `path` is used in messages. Errors: InvalidArgument where a byte has no
  // token, or a merge has the token of a byte.
  static absl::StatusOr<std::shared_ptr<const CharacterAlphabet>> Create(
      const std::string& path, const absl::flat_hash_map<std::string, int32_t>& ids,
      std::span<const BpeMerge> merges, bool cut_before_space);

  size_t PieceLength(std::string_view text) const override;
  void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  static constexpr uint32_t kAscii = 128;

  CharacterAlphabet() = default;

  // Characters are the numbers that their bytes in UTF-8 are.
  bool MayJoin(uint32_t left, uint32_t right) const;
  void AddPair(uint32_t left, uint32_t right);
  // -1: none.
  int32_t TokenOf(uint32_t character) const;

  std::array<int32_t, 256> byte_ids_;
  std::array<int32_t, kAscii> ascii_ids_;                 // -1: none
  absl::flat_hash_map<uint32_t, int32_t> character_ids_;  // of the others
  std::bitset<size_t{kAscii} * kAscii> ascii_pairs_;      // that a merge joins
  absl::flat_hash_set<uint64_t> pairs_;                   // of which one is not ASCII
};

// The alphabet in which GPT-2's vocabulary files write bytes has one printable character for each.
// The printable characters of Latin-1 stand for themselves; the other bytes are, in ascending
// order, the characters from U+0100 on.
std::string ByteLevelCharacter(uint8_t byte);

// The bytes that a token stands for; nullopt where it has a character outside the alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view token);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_ALPHABET_H_
