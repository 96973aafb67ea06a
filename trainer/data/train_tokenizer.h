#ifndef TESSERA_TRAINER_DATA_TRAIN_TOKENIZER_H_
#define TESSERA_TRAINER_DATA_TRAIN_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"
#include "trainer/data/corpus.h"

namespace tessera {

// 256 bytes, the unknown piece, end of text, and room for the characters of a small alphabet.
inline constexpr int64_t kMinSentencePieceVocabulary = 300;

// Trains a SentencePiece vocabulary of exactly vocab_size ids on about sample_bytes of the text:
// every line has the same probability, decided by a hash of its document and number. Skips lines
// that are not UTF-8. Errors: InvalidArgument when the text is too small or too uniform for that
// many ids, or has too many different characters for so few.
absl::StatusOr<std::unique_ptr<Tokenizer>> TrainTokenizer(const std::vector<DocumentPart>& parts,
                                                          int64_t vocab_size, int64_t sample_bytes,
                                                          const BytesDone& done);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_TRAIN_TOKENIZER_H_
