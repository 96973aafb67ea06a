#ifndef TESSERA_TRAINER_DATA_DATASET_H_
#define TESSERA_TRAINER_DATA_DATASET_H_

// A set of token files, divided into samples of T tokens and their targets.
//
// Shards are ordered by the natural order of their names. Within a shard of `count` tokens, sample
// i reads tokens [i*T, i*T + T]: T inputs and, shifted by one token, T targets, so that neighbours
// share one token and every transition inside the shard is trained on once. A shard has max(0,
// (count - 1) / T) samples; the rest at its end (fewer than T transitions) is unused. No sample
// crosses shards. Samples are numbered through the shards in order.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "trainer/data/token_checksums.h"
#include "trainer/data/token_file.h"

namespace tessera {

class TokenDataset {
 public:
  // Opens the files that match `pattern`, a shell pattern or a file name, which never matches
  // checksum files. Errors:
  // - NotFound, naming the pattern, if no file matches; those of TokenFile::Open();
  // - InvalidArgument if shards differ in format, if the vocabulary does not fit the format, if
  //   sequence_length is below 1, or if there is not a single sample.
  static absl::StatusOr<std::unique_ptr<TokenDataset>> Open(const std::string& pattern,
                                                            int64_t sequence_length,
                                                            int64_t vocab_size);

  int64_t num_samples() const { return first_samples_.back(); }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t sequence_length() const { return sequence_length_; }
  int64_t vocab_size() const { return vocab_size_; }

  // Returns "3 files, the first data/train_1.bin".
  std::string DescribeFiles() const;

  // Returns a hash over the shards in order, without their names, which identifies the token data.
  // A checkpoint records the fingerprint, since consumed_samples is meaningless for other data.
  // Independent of T, which decides the number of samples.
  DataFingerprint fingerprint() const;

  // Gives `notes` (may be null) a sentence about shards that are too short for a sample, which are
  // never read, if there are any.
  void NoteUnread(const NoteSink& notes) const;

  // Computes checksums for the shards that have none, unless these shards have more than
  // `max_bytes` together, since a large corpus is not read before the first step. Stores the
  // checksums beside the shards if possible. Without checksums, damage goes unnoticed, and changed
  // data may go unnoticed. `notes` (may be null) receives a sentence about slow or omitted work.
  // Errors: those of reading a shard.
  absl::Status AddChecksums(int64_t max_bytes, const NoteSink& notes);

  // Reads a sample into ids, targets [T]. Errors: OutOfRange for a sample that does not exist;
  // those of TokenFile::Read(). Thread-safe.
  absl::Status ReadSample(int64_t sample, std::span<int32_t> ids, std::span<int32_t> targets) const;

 private:
  TokenDataset() = default;

  std::vector<std::unique_ptr<TokenFile>> shards_;
  // The number of samples before each shard, then their sum: [num_shards + 1].
  std::vector<int64_t> first_samples_;
  int64_t num_tokens_ = 0;
  int64_t sequence_length_ = 0;
  int64_t vocab_size_ = 0;
  uint64_t sampled_fingerprint_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_DATASET_H_
