#ifndef TESSERA_COMPUTE_PARALLEL_MICRO_BATCHES_H_
#define TESSERA_COMPUTE_PARALLEL_MICRO_BATCHES_H_

#include <bit>
#include <cstdint>

#include "absl/status/status.h"

namespace tessera {

constexpr bool IsPowerOfTwo(int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<uint64_t>(n));
}

// Returns the canonical unit of a micro-batch size, its largest odd divisor: the number of samples
// that EXACT numerics add as a unit. Micro-batch sizes with the same unit (such as 1, 2 and 4) give
// the same sums.
constexpr int64_t CanonicalUnit(int64_t micro_batch_size) {
  return micro_batch_size / (micro_batch_size & -micro_batch_size);
}

// The micro-batches of a global step that a data-parallel rank computes.
struct MicroBatchSplit {
  int zero_stage = 0;
  int data_ranks = 1;
  int64_t micro_batches = 1;  // per global step: global batch / micro-batch

  int64_t local() const { return micro_batches / data_ranks; }
};

// Returns the global index of micro-batch `i` of data rank `rank`, 0 <= i < split.local(). ZeRO 0
// and 1 reduce once per step, so a rank has a contiguous run. ZeRO 2 reduces at every micro-batch,
// so micro-batches that are reduced together are contiguous.
int64_t GlobalMicroBatch(const MicroBatchSplit& split, int rank, int64_t i);

// Checks whether micro-batches can be split evenly, and, for `exact`, whether the split's sums
// equal the binary tree over global micro-batches. With M = global batch / micro-batch, `exact`
// requires
// - ZeRO 0, 1: M / data_ranks to be a power of two, or one data rank;
// - ZeRO 2: data_ranks to be a power of two, or M = data_ranks.
// InvalidArgument: one sentence with the names of the settings.
absl::Status CheckMicroBatches(int64_t global_batch_size, int64_t micro_batch_size,
                               int data_parallel_size, int zero_stage, bool exact);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_MICRO_BATCHES_H_
