#ifndef TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TRAINING_H_
#define TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TRAINING_H_

// Training with the SentencePiece library, whose header clashes with Abseil's and whose exported
// symbols clash with protobuf's. Therefore this file uses no Abseil, and a program that links
// protobuf must not depend on it.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Trains a BPE model with byte fallback and without normalisation (SentencePieceTokenizer reads
// it): id 0 is the unknown piece, which never occurs, id 1 the end of text. Single-threaded and
// without sampling: the same sentences yield the same bytes. The vocabulary is smaller than
// requested when the sentences contain too few pairs. `sentences` are lines of valid UTF-8 without
// their line ends. On failure returns false and sets *error.
bool TrainSentencePieceModel(const std::vector<std::string>& sentences, int64_t vocab_size,
                             std::string* model, std::string* error);

}  // namespace tessera

#endif  // TESSERA_TOKENIZER_SENTENCEPIECE_SENTENCEPIECE_TRAINING_H_
