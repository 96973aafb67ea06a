#include "trainer/step/loss_sum.h"

#include <cstddef>

#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "compute/parallel/tree_sum.h"
#include "glog/logging.h"

namespace tessera {
namespace {

// Gathers the losses of all micro-batches, concatenated by rank.
absl::StatusOr<std::vector<double>> Gather(std::span<const double> mine,
                                           const MicroBatchesByRank& owners,
                                           Communicator* data_parallel) {
  if (data_parallel == nullptr) return std::vector<double>(mine.begin(), mine.end());
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (const std::vector<int64_t>& indices : owners) {
    counts.push_back(static_cast<int64_t>(indices.size()));
    total += counts.back();
  }
  std::vector<double> all(total);
  TESSERA_RETURN_IF_ERROR(
      data_parallel->AllGather(mine, std::span(all), counts, {.what = "losses"}));
  return all;
}

std::vector<double> InGlobalOrder(std::span<const double> by_rank,
                                  const MicroBatchesByRank& owners) {
  std::vector<double> ordered(by_rank.size());
  size_t next = 0;
  for (const std::vector<int64_t>& indices : owners) {
    for (const int64_t index : indices) ordered[index] = by_rank[next++];
  }
  return ordered;
}

}  // namespace

absl::StatusOr<double> SumLosses(std::span<const double> mine, const MicroBatchesByRank& owners,
                                 const Mesh& mesh) {
  const TraceSpan span("operation", "sum of losses");
  double sum = 0;
  if (mesh.last_stage()) {
    CHECK_EQ(mine.size(), owners[mesh.coordinate().data].size());
    TESSERA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(mine, owners, mesh.host().data));
    sum = TreeSum(InGlobalOrder(all, owners));
  }
  if (Communicator* const pipeline = mesh.host().pipeline; pipeline != nullptr) {
    TESSERA_RETURN_IF_ERROR(pipeline->Broadcast(std::span(&sum, 1), mesh.topology().pipeline - 1,
                                                {.what = "the loss"}));
  }
  return sum;
}

MicroBatchesByRank TrainingOwners(const MicroBatchSplit& split) {
  MicroBatchesByRank owners(split.data_ranks);
  for (int rank = 0; rank < split.data_ranks; ++rank) {
    for (int64_t i = 0; i < split.local(); ++i) {
      owners[rank].push_back(GlobalMicroBatch(split, rank, i));
    }
  }
  return owners;
}

MicroBatchesByRank EvaluationOwners(int64_t micro_batches, int ranks) {
  MicroBatchesByRank owners(ranks);
  for (int64_t i = 0; i < micro_batches; ++i) owners[i % ranks].push_back(i);
  return owners;
}

}  // namespace tessera
