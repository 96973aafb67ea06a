#ifndef TESSERA_TRAINER_STEP_SUM_LOSSES_H_
#define TESSERA_TRAINER_STEP_SUM_LOSSES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/parallel/mesh.h"

namespace tessera {

// The micro-batches that each data-parallel rank computes, by global index; together they are 0 ...
// n - 1.
using MicroBatchesByRank = std::vector<std::vector<int64_t>>;

// The sum of the losses of all micro-batches of a step or an evaluation, in the binary tree over
// their global index, returned on every rank. `mine`: the losses of this rank's own micro-batches
// in the order of `owners`, on the last pipeline stage (ignored elsewhere).
absl::StatusOr<double> SumLosses(std::span<const double> mine, const MicroBatchesByRank& owners,
                                 const Mesh& mesh);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STEP_SUM_LOSSES_H_
