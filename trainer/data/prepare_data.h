#ifndef TESSERA_TRAINER_DATA_PREPARE_DATA_H_
#define TESSERA_TRAINER_DATA_PREPARE_DATA_H_

// Text files -> token files, a tokenizer and a description. The output folder then contains:
//
//   train_000.bin ...  token files (token_file.h); an end-of-text token stands before each document
//   val_000.bin ...    the same for the documents held back for validation; absent when the
//                      fraction is 0
//   *.bin.crc32c       checksums of each token file (token_checksums.h)
//   tokenizer.bin      the text of each id, as llm.c reads it; for byte tokens it is the whole
//                      tokenizer; absent where a token is too long for it
//   tokenizer.model    the SentencePiece model; of another tokenizer, its own files
//   dataset.json       describes the files above; written last, so that a folder with it is
//                      complete

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"
#include "trainer/data/corpus.h"
#include "trainer/data/dataset_summary.h"
#include "trainer/data/token_file.h"

namespace tessera {

struct PrepareDataOptions {
  // Files, directories, shell patterns. Empty: the default corpus (DefaultCorpusPattern()).
  std::vector<std::string> inputs;
  std::string output_dir;

  // "byte", "sentencepiece", or the path of a tokenizer (load_tokenizer.h).
  std::string tokenizer = "sentencepiece";
  // Whether the tokenizer's begin-of-text token also stands before each document, after end of
  // text.
  bool begin_of_text = false;
  // Number of ids, special ones included. 0: 257 for bytes, 4096 for SentencePiece.
  int64_t vocab_size = 0;
  // The most text on which the SentencePiece vocabulary is trained, spread over all of it.
  int64_t tokenizer_sample_bytes = 4 << 20;

  // Nullopt: the smallest one that holds the vocabulary of a given tokenizer; GPT-2's otherwise.
  std::optional<TokenFormat> format;
  double validation_fraction = 0.05;
  // Tokens per shard, except the last.
  int64_t shard_tokens = 100'000'000;
  // Threads that encode. The files do not depend on it. 0: one for each processor.
  int threads = 0;
};

struct PrepareDataResult {
  DatasetSummary summary;
  // Whether the folder already held this data set, so that nothing was written.
  bool up_to_date = false;
  std::vector<SkippedFile> skipped;
};

// Reports progress. `phase` lasts until done_bytes reaches total_bytes (0: unknown).
using PrepareProgress =
    std::function<void(std::string_view phase, int64_t done_bytes, int64_t total_bytes)>;

// Prepares a data set. Reads the text twice (once for its hash), in chunks; memory does not grow
// with the corpus, except for documents in which a given tokenizer finds no place to cut. Files are
// written under temporary names and renamed when all are complete; a run that dies leaves the old
// files, or no valid dataset.json. Deterministic: the same texts in the same order with the same
// options yield the same bytes. Errors: InvalidArgument, naming the option; NotFound, naming the
// input; FailedPrecondition if the folder holds token files of another program, which the trainer
// would read, too; those of the file system.
absl::StatusOr<PrepareDataResult> PrepareData(const PrepareDataOptions& options,
                                              const PrepareProgress& progress);

// Writes checksums beside the token files that `pattern` matches, and replaces existing ones. For
// files of other programs, and for files that were changed on purpose. Returns the number of files.
// Errors: NotFound naming the pattern; those of TokenFile::Open and of the file system.
absl::StatusOr<int64_t> AddChecksums(const std::string& pattern, const PrepareProgress& progress);

// The smallest vocabulary: 256 bytes, the unknown piece, end of text, and the characters of a small
// alphabet.
inline constexpr int64_t kMinSentencePieceVocabulary = 300;

// Trains a SentencePiece vocabulary of exactly vocab_size ids on about sample_bytes of the text:
// every line has the same probability, decided by a hash of its document and number. Skips lines
// that are not UTF-8. Errors: InvalidArgument if the text is too small or too uniform for so many
// ids, or has too many different characters for so few.
absl::StatusOr<std::unique_ptr<Tokenizer>> TrainTokenizer(const std::vector<DocumentPart>& parts,
                                                          int64_t vocab_size, int64_t sample_bytes,
                                                          const BytesDone& done);

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_PREPARE_DATA_H_
