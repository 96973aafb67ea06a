#include "trainer/parallel/choose_topology.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

// How far one size is from another, by ratio.
double Distance(int a, int b) { return std::abs(std::log2(static_cast<double>(a) / b)); }

// Less is better.
auto Preference(const Topology& topology, const Topology& wanted) {
  const int replica = topology.tensor * topology.pipeline;
  return std::make_tuple(Distance(replica, wanted.tensor * wanted.pipeline), -replica,
                         Distance(topology.tensor, wanted.tensor), topology.tensor,
                         topology.virtual_pipeline != wanted.virtual_pipeline);
}

std::optional<Topology> Best(const Topology& wanted, int world_size, const ModelConfig& model,
                             const BatchSizes& batch, int exact_tp_shards) {
  std::optional<Topology> best;
  for (int tensor = 1; tensor <= world_size; ++tensor) {
    if (world_size % tensor != 0) continue;
    for (int pipeline = 1; pipeline <= world_size / tensor; ++pipeline) {
      if (world_size / tensor % pipeline != 0) continue;
      for (const int virtual_pipeline : {wanted.virtual_pipeline, 1}) {
        const Topology topology = {
            .tensor = tensor,
            .data = world_size / tensor / pipeline,
            .pipeline = pipeline,
            .virtual_pipeline = virtual_pipeline,
            .zero_stage = wanted.zero_stage,
            .sequence_parallel = wanted.sequence_parallel && tensor > 1,
        };
        if (!ValidateTopology(topology, model, batch, exact_tp_shards).ok()) continue;
        if (!best.has_value() || Preference(topology, wanted) < Preference(*best, wanted)) {
          best = topology;
        }
      }
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<Topology> ChooseTopology(const Topology& wanted, int world_size,
                                        const ModelConfig& model, const BatchSizes& batch,
                                        int exact_tp_shards) {
  const std::optional<Topology> best = Best(wanted, world_size, model, batch, exact_tp_shards);
  if (best.has_value()) return *best;
  std::vector<int> possible;
  for (int size = 1; size <= 2 * world_size; ++size) {
    if (Best(wanted, size, model, batch, exact_tp_shards).has_value()) possible.push_back(size);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("topology=auto: the model and the batch cannot be split over ", world_size,
                   possible.empty() ? " processes" : " processes; it goes with ",
                   absl::StrJoin(possible, ", ")));
}

}  // namespace tessera
