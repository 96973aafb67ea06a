#ifndef TESSERA_TRAINER_DATA_BATCH_LOADER_H_
#define TESSERA_TRAINER_DATA_BATCH_LOADER_H_

// B samples of the batch asked for, T tokens of a sample.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sample_order.h"

namespace tessera {

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
  absl::Status FillEvaluationBatch(int64_t first, int64_t count, std::span<int32_t> ids,
                                   std::span<int32_t> targets) const;

 private:
  const TokenDataset* dataset_;
  SampleOrder order_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_DATA_BATCH_LOADER_H_
