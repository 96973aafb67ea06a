#ifndef TESSERA_COMPUTE_PARALLEL_PIPELINE_SCHEDULE_H_
#define TESSERA_COMPUTE_PARALLEL_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <vector>

namespace tessera {

// One action of a pipeline rank: the forward or backward pass of one micro-batch through one of its
// chunks of layers.
struct PipelineAction {
  enum Kind { kForward, kBackward } kind = kForward;
  int64_t micro_batch = 0;
  int chunk = 0;  // virtual stage chunk * pipeline size + rank

  bool operator==(const PipelineAction&) const = default;
};

struct PipelineShape {
  int ranks = 1;
  int chunks = 1;  // per rank; above 1 the schedule is interleaved
  int64_t micro_batches = 1;
};

// The actions of one rank in one step, in order. With one chunk: 1F1B (Narayanan et al.,
// PipeDream-Flush, ICML 2021). With several: interleaved 1F1B (Narayanan et al., "Efficient
// large-scale language model training on GPU clusters using Megatron-LM", SC 2021).
//
// Every (micro-batch, chunk) has one forward and, later, one backward pass; backward passes of one
// chunk come in the order of micro-batches, which fixes the order of gradient sums. Precondition:
// interleaved schedules need micro_batches to be a multiple of ranks.
std::vector<PipelineAction> PipelineSchedule(const PipelineShape& shape, int rank);

// The actions of each rank, in order, when all micro-batches run forward only. Any number of them.
std::vector<PipelineAction> ForwardSchedule(const PipelineShape& shape);

// The maximum number of (micro-batch, chunk) pairs between their forward and backward passes: the
// number of sets of activations that the rank must hold.
int64_t MaxInFlight(const std::vector<PipelineAction>& actions);
// The same for one chunk only.
int64_t MaxInFlight(const std::vector<PipelineAction>& actions, int chunk);

// The pipeline bubble: the share of time that ranks wait, if all chunks take equally long and
// messages take no time: (ranks - 1) / (chunks * micro_batches + ranks - 1).
double BubbleShare(const PipelineShape& shape);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_PIPELINE_SCHEDULE_H_
