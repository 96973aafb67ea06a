#include "trainer/config/choose_topology.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "compute/parallel/micro_batches.h"

namespace tessera {
namespace {

// "num_attention_heads = 8 is not a multiple of tensor_model_parallel_size = 3".
absl::Status Refuse(absl::string_view what, int64_t value, absl::string_view by, int64_t divisor) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " = ", value, " is not a multiple of ", by, " = ", divisor));
}

absl::Status ValidateShards(const Topology& topology, int exact_tp_shards) {
  if (exact_tp_shards == 0) return absl::OkStatus();
  // First, since no exact_tp_shards goes with such a size.
  if (!IsPowerOfTwo(topology.tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_model_parallel_size = ", topology.tensor,
                     " is not a power of two: EXACT numerics go with powers of two up to ",
                     "exact_tp_shards = ", exact_tp_shards));
  }
  if (!IsPowerOfTwo(exact_tp_shards)) {
    return absl::InvalidArgumentError(
        absl::StrCat("exact_tp_shards = ", exact_tp_shards, " is not a power of two"));
  }
  if (exact_tp_shards < topology.tensor) {
    return absl::InvalidArgumentError(absl::StrCat(
        "exact_tp_shards = ", exact_tp_shards, " is less than tensor_model_parallel_size = ",
        topology.tensor, ": it must be a power of two that is at least as large"));
  }
  return absl::OkStatus();
}

// Returns the name of the setting that determines the number of virtual shards.
absl::string_view ShardsName(int exact_tp_shards) {
  return exact_tp_shards > 0 ? "exact_tp_shards" : "tensor_model_parallel_size";
}

absl::Status ValidateModel(const Topology& topology, const ModelConfig& model,
                           int exact_tp_shards) {
  const int shards = VirtualShards(topology, exact_tp_shards);
  for (const auto& [name, size] : std::array<std::pair<const char*, int64_t>, 3>{
           {{"num_attention_heads", model.num_attention_heads()},
            {"num_query_groups", model.num_query_groups()},
            {"ffn_hidden_size", model.ffn_hidden_size()}}}) {
    if (size % shards != 0) return Refuse(name, size, ShardsName(exact_tp_shards), shards);
  }
  const int64_t chunks = int64_t{topology.pipeline} * topology.virtual_pipeline;
  if (model.num_layers() < chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_layers = ", model.num_layers(), " is fewer than the ", chunks,
                     " pipeline chunks (pipeline_model_parallel_size = ", topology.pipeline,
                     ", num_virtual_stages_per_pipeline_rank = ", topology.virtual_pipeline, ")"));
  }
  return absl::OkStatus();
}

absl::Status ValidateBatch(const Topology& topology, const BatchSizes& batch, int exact_tp_shards) {
  for (const auto& [name, size] :
       std::array<std::pair<const char*, int64_t>, 3>{{{"micro_batch_size", batch.micro_batch},
                                                       {"global_batch_size", batch.global_batch},
                                                       {"seq_length", batch.sequence_length}}}) {
    if (size < 1) return absl::InvalidArgumentError(absl::StrCat(name, " = ", size, " is below 1"));
  }
  TESSERA_RETURN_IF_ERROR(CheckMicroBatches(batch.global_batch, batch.micro_batch, topology.data,
                                            topology.zero_stage,
                                            /*exact=*/exact_tp_shards > 0));
  const int64_t micro_batches = batch.global_batch / (batch.micro_batch * topology.data);
  if (topology.virtual_pipeline > 1 && micro_batches % topology.pipeline != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_virtual_stages_per_pipeline_rank = ", topology.virtual_pipeline,
        " needs global_batch_size / (micro_batch_size * data_parallel_size) = ", micro_batches,
        " micro-batches to be a multiple of pipeline_model_parallel_size = ", topology.pipeline));
  }
  // Gradients of norms are added over this many blocks of rows; sequence parallelism gives each
  // rank its blocks. EXACT numerics ask for it on every topology, so that one with sequence
  // parallelism can take over; FAST ones without it cut no rows.
  if (exact_tp_shards == 0 && !topology.sequence_parallel) return absl::OkStatus();
  const int64_t rows = batch.micro_batch * batch.sequence_length;
  const int shards = VirtualShards(topology, exact_tp_shards);
  if (rows % shards != 0) {
    return Refuse("micro_batch_size * seq_length", rows, ShardsName(exact_tp_shards), shards);
  }
  return absl::OkStatus();
}

// Returns the ratio between two sizes, as a distance.
double Distance(int64_t a, int64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

// Returns a key that is least for the topology to prefer.
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

absl::Status ValidateTopology(const Topology& topology, const ModelConfig& model,
                              const BatchSizes& batch, int exact_tp_shards) {
  // In this order: later checks divide by what earlier ones have found to be positive.
  absl::Status status = ValidateSizes(topology);
  if (status.ok()) status = ValidateShards(topology, exact_tp_shards);
  if (status.ok()) status = ValidateModel(topology, model, exact_tp_shards);
  if (status.ok()) status = ValidateBatch(topology, batch, exact_tp_shards);
  return status;
}

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
