#ifndef TESSERA_TRAINER_DATA_BATCH_LOADER_H_
#define TESSERA_TRAINER_DATA_BATCH_LOADER_H_

// Legend: B samples of the requested batch, T tokens of a sample.

#include <cstdint>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "trainer/data/dataset.h"

namespace tessera {

// The order in which training reads its samples: an endless global sequence of epochs, each a
// permutation of all samples. A pure function of (seed, number of samples, position), so a position
// is a single number (consumed_samples), and any topology or batch size reads the same sequence.
//
// The permutation is a Feistel network over the smallest even number of bits that holds the
// samples. Its round functions are Philox keyed by (seed, epoch, round); values beyond the samples
// follow their cycle until they fall inside (Black and Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002). Memory O(1); fewer than four steps expected, half a microsecond each.
class SampleOrder {
 public:
  // Precondition: num_samples >= 1.
  SampleOrder(uint64_t seed, int64_t num_samples);

  int64_t num_samples() const { return num_samples_; }

  // Return the epoch of global sample number `position` (0 or more), and its sample in the dataset.
  int64_t EpochAt(int64_t position) const { return position / num_samples_; }
  int64_t SampleAt(int64_t position) const;

  // Applies the epoch's bijection of [0, num_samples).
  int64_t Permute(int64_t epoch, int64_t index) const;

 private:
  uint64_t Encrypt(int64_t epoch, uint64_t value) const;

  uint64_t seed_;
  int64_t num_samples_;
  int half_bits_;
};

// Reads batches by position. Stateless: a rank requests the run of samples that is its share of a
// step. Thread-safe. A subclass may observe what training reads.
class BatchLoader {
 public:
  // `dataset` must outlive the loader.
  BatchLoader(const TokenDataset* dataset, uint64_t seed);
  virtual ~BatchLoader() = default;

  const SampleOrder& order() const { return order_; }

  // Reads training samples consumed_samples + first ... + first + count - 1 of the global sequence.
  // ids, targets [count, T]. In a step of G samples on dp ranks, a rank passes first = rank * G /
  // dp; a batch may cross an epoch's end. Errors: those of TokenDataset::ReadSample.
  virtual absl::Status FillBatch(int64_t consumed_samples, int64_t first, int64_t count,
                                 std::span<int32_t> ids, std::span<int32_t> targets) const;

  // Reads samples first ... first + count - 1 of the dataset in their own order, for evaluation:
  // the same samples every time. OutOfRange past the last sample.
  virtual absl::Status FillEvaluationBatch(int64_t first, int64_t count, std::span<int32_t> ids,
                                           std::span<int32_t> targets) const;

  // Returns the first error of a loader that keeps errors; OK for one that returns them.
  virtual absl::Status kept_error() const { return absl::OkStatus(); }

 private:
  const TokenDataset* dataset_;
  SampleOrder order_;
};

// Keeps an error instead of returning it, and fills that batch with zeros. So all ranks end a pass
// together, and can agree on the error before they use the results.
class ErrorKeepingLoader final : public BatchLoader {
 public:
  using BatchLoader::BatchLoader;
  absl::Status FillBatch(int64_t consumed_samples, int64_t first, int64_t count,
                         std::span<int32_t> ids, std::span<int32_t> targets) const override;
  absl::Status FillEvaluationBatch(int64_t first, int64_t count, std::span<int32_t> ids,
                                   std::span<int32_t> targets) const override;
  absl::Status kept_error() const override;

 private:
  absl::Status Keep(const absl::Status& read, std::span<int32_t> ids,
                    std::span<int32_t> targets) const;

  mutable Mutex mutex_;
  mutable absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_BATCH_LOADER_H_
