#ifndef TESSERA_TRAINER_PARALLEL_PIPELINE_SCHEDULE_H_
#define TESSERA_TRAINER_PARALLEL_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <vector>

namespace tessera {

// One piece of work of a pipeline rank: the forward or backward pass of one micro-batch through one
// of its chunks of layers.
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

// What one rank does in one step, in order. With one chunk: 1F1B (Narayanan et al.,
// PipeDream-Flush, ICML 2021). With several: interleaved 1F1B (Narayanan et al., "Efficient
// large-scale language model training on GPU clusters using Megatron-LM", SC 2021).
//
// Every (micro-batch, chunk) goes forward once and backward once, backward later; backward passes
// of one chunk come in the order of micro-batches, which fixes the order of gradient sums.
// Precondition: interleaved schedules need micro_batches to be a multiple of ranks.
std::vector<PipelineAction> PipelineSchedule(const PipelineShape& shape, int rank);

// What each rank does, in order, when all micro-batches go forward only. Any number of them.
std::vector<PipelineAction> ForwardSchedule(const PipelineShape& shape);

// The most (micro-batch, chunk) pairs that have gone forward and not yet backward: how many sets of
// activations the rank must hold.
int64_t MostInFlight(const std::vector<PipelineAction>& actions);
// The same of one chunk alone.
int64_t MostInFlight(const std::vector<PipelineAction>& actions, int chunk);

// Share of time that ranks wait, when all chunks take equally long and messages take none:
// (ranks - 1) / (chunks * micro_batches + ranks - 1).
double BubbleShare(const PipelineShape& shape);

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_PIPELINE_SCHEDULE_H_
