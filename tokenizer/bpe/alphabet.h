#ifndef TESSERA_TOKENIZER_BPE_ALPHABET_H_
#define TESSERA_TOKENIZER_BPE_ALPHABET_H_

// The initial tokens of byte-pair encoding, of bytes or of characters, and the forms of bytes and
// spaces in vocabulary files.

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

// Returns 10 for "<0x0A>", and so on; -1 for anything else.
int ParseBytePiece(std::string_view text);

// Returns the text of a piece, in which U+2581 stands for a space.
std::string WithSpaces(std::string_view piece);

// Returns a text as it is in pieces: every space becomes U+2581.
std::string WithSpaceMarks(std::string_view text);

// Cuts a text into pieces, and a piece into initial tokens. Byte-pair encoding encodes each piece
// on its own, by merging these tokens. Thread-safe.
class BpeAlphabet {
 public:
  virtual ~BpeAlphabet() = default;

  // Returns the length in bytes of the first piece of a text that is not empty; at least 1.
  virtual size_t PieceLength(std::string_view text) const = 0;
  virtual void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const = 0;
};

// A token for each byte, as in GPT-2 and Llama-3.
class ByteAlphabet final : public BpeAlphabet {
 public:
  // `tokens` has the bytes of each token. `path` is used in messages. InvalidArgument if a byte has
  // no token.
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

// A token for each character, and one for each byte of characters that the vocabulary lacks, as in
// Hugging Face's tokenizers with the vocabularies of SentencePiece (Llama-2, Mistral).
//
// A text is cut wherever no merge can join the two characters, which changes no ids.
class CharacterAlphabet final : public BpeAlphabet {
 public:
  // `ids` are the ids of the tokens as tokenizer.json writes them, bytes as <0x0A>. With
  // `cut_before_space`, U+2581 always begins a piece. `path` is used in messages. InvalidArgument
  // if a byte has no token, or a merge has the token of a byte.
  static absl::StatusOr<std::shared_ptr<const CharacterAlphabet>> Create(
      const std::string& path, const absl::flat_hash_map<std::string, int32_t>& ids,
      std::span<const BpeMerge> merges, bool cut_before_space);

  size_t PieceLength(std::string_view text) const override;
  void AppendTokens(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  static constexpr uint32_t kAscii = 128;

  CharacterAlphabet() = default;

  // Returns whether a merge may join two characters. A character is the number that its bytes in
  // UTF-8 make.
  bool MayJoin(uint32_t left, uint32_t right) const;
  void AddPair(uint32_t left, uint32_t right);
  // Returns the token of a character; -1 without one.
  int32_t TokenOf(uint32_t character) const;

  std::array<int32_t, 256> byte_ids_;
  std::array<int32_t, kAscii> ascii_ids_;                 // -1: none
  absl::flat_hash_map<uint32_t, int32_t> character_ids_;  // of the others
  std::bitset<size_t{kAscii} * kAscii> ascii_pairs_;      // that a merge joins
  absl::flat_hash_set<uint64_t> pairs_;                   // of which one is not ASCII
};

// Returns the printable character that stands for a byte in GPT-2's vocabulary files. The printable
// characters of Latin-1 stand for themselves; the other bytes are, in ascending order, the
// characters from U+0100 on.
std::string ByteLevelCharacter(uint8_t byte);

// Returns the bytes of a token in such a file; nullopt if it has a character outside that alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view token);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_BPE_ALPHABET_H_
