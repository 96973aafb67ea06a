#ifndef TESSERA_TOKENIZER_SENTENCEPIECE_SEGMENTER_H_
#define TESSERA_TOKENIZER_SENTENCEPIECE_SEGMENTER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/string_trie.h"

namespace tessera {

// Cuts normalised text into the pieces of a model, as SentencePiece does. Of unigram cuts whose
// scores differ by no more than the rounding of their sum, versions of the library choose different
// ones: the sums here are those of version 0.2.3, except that in texts of 100 kB and more a cut may
// differ. Thread-safe.
class SentencePieceSegmenter {
 public:
  struct Segment {
    std::string_view text;
    int32_t id;  // that of the unknown piece where no piece is the text
  };

  // Precondition: the model's type is kUnigram or kBpe.
  explicit SentencePieceSegmenter(const SentencePieceModel& model);

  // `text` is UTF-8.
  std::vector<Segment> Cut(std::string_view text) const;

 private:
  // The pieces whose scores have the largest sum (Kudo, 2018).
  std::vector<Segment> CutUnigram(std::string_view text) const;
  // Merges the neighbours that are the piece of the best score, until there are none.
  std::vector<Segment> CutBpe(std::string_view text) const;
  int32_t Find(std::string_view piece) const;  // -1: none

  struct Piece {
    float score;
    SentencePieceType type;
  };
  std::vector<Piece> pieces_;
  StringTrie trie_;  // of the pieces that text becomes, and those that are not used
  StringTrie user_defined_;
  bool is_bpe_;
  int32_t unknown_ = 0;
  float min_score_, max_score_;
};

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SENTENCEPIECE_SEGMENTER_H_
