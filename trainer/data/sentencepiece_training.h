#ifndef TESSERA_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_
#define TESSERA_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_

// The only user of the SentencePiece library, whose header cannot stand beside Abseil's and whose
// exported symbols cannot stand beside protobuf's: no Abseil here, and no program that links
// protobuf may depend on it.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Trains a BPE model with byte fallback that leaves text as it is (SentencePieceTokenizer reads
// it): id 0 is the unknown piece, which never occurs, id 1 the end of text. Single-threaded and
// without sampling: the same sentences give the same bytes. The vocabulary is smaller than asked
// for when the sentences do not hold enough pairs. sentences: lines of valid UTF-8 without their
// ends. On failure returns false and sets *error.
bool TrainSentencePieceModel(const std::vector<std::string>& sentences, int64_t vocab_size,
                             std::string* model, std::string* error);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_SENTENCEPIECE_TRAINING_H_
