#ifndef TESSERA_TRAINER_DATA_ENCODE_DOCUMENTS_H_
#define TESSERA_TRAINER_DATA_ENCODE_DOCUMENTS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "tokenizer/tokenizer.h"
#include "trainer/data/corpus.h"
#include "trainer/data/token_file.h"

namespace tessera {

// Writes the tokens of each part, with `separator` before it, in order. Chunks of text are encoded
// by `threads` threads; the tokens do not depend on their number. Calls `done` from the caller's
// thread. Memory: some MiB for each thread. Errors: those of ForEachChunk, of the tokenizer and of
// the writer.
absl::Status EncodeDocuments(std::span<const DocumentPart> parts, const Tokenizer& tokenizer,
                             std::span<const int32_t> separator, int threads, const BytesDone& done,
                             TokenShardWriter& writer);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_ENCODE_DOCUMENTS_H_
