#ifndef TESSERA_TOKENIZER_CHARACTER_ALPHABET_H_
#define TESSERA_TOKENIZER_CHARACTER_ALPHABET_H_

#include <array>
#include <bitset>
#include <memory>
#include <span>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "tokenizer/bpe_alphabet.h"
#include "tokenizer/bpe_merges.h"

namespace tessera {

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

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_CHARACTER_ALPHABET_H_
