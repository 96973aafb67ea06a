#include "trainer/config/choose_topology.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The ratio between two sizes, as a distance.
double Distance(int64_t a, int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

// Less is better.
auto Preference(const Topology& topology, const Topology& wanted) {
  const int replica = topology.tensor * topology.pipeline;
  return std::make_tuple(Distance(replica, int64_t{wanted.tensor} * wanted.pipeline), -replica,
                         Distance(topology.tensor, wanted.tensor), topology.tensor,
                         topology.virtual_pipeline != wanted.virtual_pipeline);
}

std::optional<Topology> Best(const Topology& wanted, int world_size, const ModelConfig& model,
                             const BatchSizes& batch, int exact_tp_shards) {
  std::optional<Topology> best;
  const int64_t max_tensor = std::min<int64_t>(world_size, model.num_attention_heads());
  for (int tensor = 1; tensor <= max_tensor; ++tensor) {
    if (world_size % tensor != 0) continue;
    const int64_t max_pipeline = std::min<int64_t>(world_size / tensor, model.num_layers());
    for (int pipeline = 1; pipeline <= max_pipeline; ++pipeline) {
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
  const auto goes = [&](int size) {
    return Best(wanted, size, model, batch, exact_tp_shards).has_value();
  };
  int below = world_size - 1, above = world_size + 1;
  while (below > 0 && !goes(below)) --below;
  while (above <= 2 * world_size && !goes(above)) ++above;
  std::vector<int> nearest;
  if (below > 0) nearest.push_back(below);
  if (above <= 2 * world_size) nearest.push_back(above);
  if (nearest.empty()) {
    // If so, the model does not fit one process either, whose error is returned.
    TESSERA_RETURN_IF_ERROR(ValidateTopology(Topology{}, model, batch, exact_tp_shards));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("topology=auto: the model and the batch cannot be split over ", world_size,
                   nearest.empty() ? " processes" : " processes; it goes with ",
                   absl::StrJoin(nearest, " or ")));
}

}  // namespace tessera
