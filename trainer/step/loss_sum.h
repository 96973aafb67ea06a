#ifndef TESSERA_TRAINER_STEP_LOSS_SUM_H_
#define TESSERA_TRAINER_STEP_LOSS_SUM_H_

// Which rank computes which micro-batches, and the sum of their losses.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/parallel/mesh.h"
#include "compute/parallel/micro_batches.h"

namespace tessera {

// The micro-batches that each data-parallel rank computes, by global index; together they are 0 ...
// n - 1.
using MicroBatchesByRank = std::vector<std::vector<int64_t>>;

// Returns the micro-batches of a training step.
MicroBatchesByRank TrainingOwners(const MicroBatchSplit& split);

// Returns the micro-batches of an evaluation, distributed round-robin: their number need not be a
// multiple of the ranks.
MicroBatchesByRank EvaluationOwners(int64_t micro_batches, int ranks);

// Sums the losses of all micro-batches of a step or an evaluation in the binary tree over their
// global index, and returns the sum on every rank. `mine`: the losses of this rank's own
// micro-batches in the order of `owners`, on the last pipeline stage (ignored elsewhere).
absl::StatusOr<double> SumLosses(std::span<const double> mine, const MicroBatchesByRank& owners,
                                 const Mesh& mesh);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_LOSS_SUM_H_
