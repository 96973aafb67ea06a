#include "compute/parallel/pipeline_schedule.h"

#include <algorithm>
#include <iterator>

#include "glog/logging.h"

namespace tessera {
namespace {

// The n-th pass of a rank in one direction: `ranks` micro-batches through the first chunk, the same
// through the next, and so on; then the next `ranks` micro-batches. Backward, the chunks are in
// reverse order.
PipelineAction NthPass(const PipelineShape& shape, PipelineAction::Kind kind, int64_t n) {
  if (shape.chunks == 1) return {.kind = kind, .micro_batch = n, .chunk = 0};
  const int64_t round = int64_t{shape.ranks} * shape.chunks;
  const int chunk = static_cast<int>(n % round / shape.ranks);
  return {.kind = kind,
          .micro_batch = n / round * shape.ranks + n % shape.ranks,
          .chunk = kind == PipelineAction::kForward ? chunk : shape.chunks - 1 - chunk};
}

// Forward passes before the first backward pass.
int64_t WarmupPasses(const PipelineShape& shape, int rank) {
  const int64_t all = shape.micro_batches * shape.chunks;
  const int64_t behind = shape.ranks - 1 - rank;
  const int64_t wanted =
      shape.chunks == 1 ? behind : 2 * behind + int64_t{shape.chunks - 1} * shape.ranks;
  return std::min(all, wanted);
}

}  // namespace

std::vector<PipelineAction> PipelineSchedule(const PipelineShape& shape, int rank) {
  CHECK(rank >= 0 && rank < shape.ranks) << rank << " of " << shape.ranks;
  CHECK(shape.chunks == 1 || shape.micro_batches % shape.ranks == 0)
      << shape.micro_batches << " micro-batches, " << shape.ranks << " ranks";
  const int64_t all = shape.micro_batches * shape.chunks;
  const int64_t warmup = WarmupPasses(shape, rank);
  std::vector<PipelineAction> actions;
  for (int64_t n = 0; n < warmup; ++n) {
    actions.push_back(NthPass(shape, PipelineAction::kForward, n));
  }
  for (int64_t n = 0; n < all; ++n) {
    if (warmup + n < all) actions.push_back(NthPass(shape, PipelineAction::kForward, warmup + n));
    actions.push_back(NthPass(shape, PipelineAction::kBackward, n));
  }
  return actions;
}

std::vector<PipelineAction> ForwardSchedule(const PipelineShape& shape) {
  std::vector<PipelineAction> actions;
  // As many micro-batches as there are ranks through all chunks, if there are as many: the last
  // rank's messages then reach a first rank that has finished the previous chunk.
  const int64_t round = shape.chunks == 1 ? shape.micro_batches : shape.ranks;
  for (int64_t begin = 0; begin < shape.micro_batches; begin += round) {
    const int64_t end = std::min(begin + round, shape.micro_batches);
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int64_t i = begin; i < end; ++i) {
        actions.push_back({.kind = PipelineAction::kForward, .micro_batch = i, .chunk = chunk});
      }
    }
  }
  return actions;
}

int64_t MaxInFlight(const std::vector<PipelineAction>& actions, int chunk) {
  std::vector<PipelineAction> of_chunk;
  std::copy_if(actions.begin(), actions.end(), std::back_inserter(of_chunk),
               [chunk](const PipelineAction& action) { return action.chunk == chunk; });
  return MaxInFlight(of_chunk);
}

int64_t MaxInFlight(const std::vector<PipelineAction>& actions) {
  int64_t in_flight = 0, most = 0;
  for (const PipelineAction& action : actions) {
    in_flight += action.kind == PipelineAction::kForward ? 1 : -1;
    most = std::max(most, in_flight);
  }
  return most;
}

double BubbleShare(const PipelineShape& shape) {
  const double waits = shape.ranks - 1;
  return waits / (static_cast<double>(shape.chunks * shape.micro_batches) + waits);
}

}  // namespace tessera
