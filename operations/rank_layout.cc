#include "operations/rank_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/plan/plan.pb.h"
#include "layout/box.h"
#include "layout/partition.h"

namespace tessera::ckpt {
namespace {

absl::Status CheckRanks(const Topology& topology) {
  constexpr int kMaxRanks = 1 << 20;  // bounds the memory for the plans of all ranks
  const int most = std::max(topology.world_size(), topology.stages());
  if (most <= kMaxRanks) return absl::OkStatus();
  return InvalidArgument("topology ", ToString(topology), ": ", most, " ranks, at most ",
                         kMaxRanks);
}

// Which stage of the pipeline, counted through all chunks, has a tensor.
class PipelineStages {
 public:
  PipelineStages(const std::vector<PartitionedTensor>& tensors, const Topology& topology)
      : topology_(topology) {
    std::map<int64_t, int64_t> matrix_elements;  // by layer
    int64_t head_elements = 0;
    for (const PartitionedTensor& tensor : tensors) {
      const Partition& partition = tensor.partition;
      // A parameter's first state counts as well, in case weights were not saved.
      const bool counts = tensor.state <= 0 && tensor.tensor->global_shape_size() >= 2;
      const int64_t elements = counts ? ElementCount(GlobalShape(*tensor.tensor)) : 0;
      if (partition.place.layer >= 0) matrix_elements[partition.place.layer] += elements;
      if (partition.place.after_layers) head_elements += elements;
    }
    for (const auto& [layer, elements] : matrix_elements) {
      const auto position = static_cast<int64_t>(position_.size());
      position_[layer] = position;
    }
    if (!matrix_elements.empty() && matrix_elements.begin()->second > 0) {
      head_layers_ = std::llround(static_cast<double>(head_elements) /
                                  static_cast<double>(matrix_elements.begin()->second));
    }
  }

  absl::Status CutLayers() {
    const int stages = topology_.stages();
    const auto layers = static_cast<int64_t>(position_.size());
    if (stages > 1 && layers == 0) {
      return InvalidArgument(
          "the checkpoint does not say which layers its tensors are in, so that ",
          ToString(topology_),
          " cannot be cut: --split=PATTERN=layer says it, where # in PATTERN "
          "is the layer's number (\"*.blocks.#.*=layer\")");
    }
    if (stages > 1 && layers < stages) {
      return InvalidArgument("the checkpoint has ", layers, " layers, fewer than the ", stages,
                             " chunks of the pipeline");
    }
    for (int stage = 0; stage < stages && layers > 0; ++stage) {
      const ChunkLayers chunk = LayersOfChunk(
          layers, head_layers_, topology_, stage % topology_.pipeline, stage / topology_.pipeline);
      stage_of_position_.resize(chunk.last, stage);
    }
    return absl::OkStatus();
  }

  // Returns the pipeline rank's stage that has the tensor; nullopt if none has. A tensor that is
  // both embedding and head is on the first and on the last stage.
  std::optional<int> StageOf(const Partition& partition, int rank) const {
    const int last = topology_.stages() - 1;
    int stage = 0;
    if (partition.place.layer >= 0) {
      stage = stage_of_position_[position_.at(partition.place.layer)];
    } else if (partition.place.after_layers && (!partition.place.before_layers || rank > 0)) {
      stage = last;
    }
    if (stage % topology_.pipeline != rank) return std::nullopt;
    return stage;
  }

  // Returns the tensor's position in a forward pass.
  int64_t OrderOf(const Partition& partition) const {
    if (partition.place.layer >= 0) return position_.at(partition.place.layer);
    const auto layers = static_cast<int64_t>(position_.size());
    return partition.place.after_layers && !partition.place.before_layers ? layers : -1;
  }

 private:
  const Topology topology_;
  std::map<int64_t, int64_t> position_;  // layer -> its place among those that there are
  std::vector<int> stage_of_position_;
  int64_t head_layers_ = 0;
};

// The boxes of one tensor that the tensor-parallel rank of a stage has.
struct HeldTensor {
  const PartitionedTensor* tensor;
  std::vector<Box> boxes;
  Shape padded_shape;
};

// Returns `own` of `parts` parts, from number `first` on.
HeldTensor Hold(const PartitionedTensor& tensor, int first, int own, int parts) {
  const LogicalTensor& saved = *tensor.tensor;
  HeldTensor held = {&tensor, {}, {saved.padded_shape().begin(), saved.padded_shape().end()}};
  const Shape shape = GlobalShape(saved);
  int64_t rows = 0;
  if (tensor.partition.padded) {
    rows = RoundUp(held.padded_shape.empty() ? shape[0] : held.padded_shape[0], int64_t{parts});
    if (held.padded_shape.empty() && rows > shape[0]) held.padded_shape = shape;
    if (!held.padded_shape.empty()) held.padded_shape[0] = rows;
  }
  const bool is_whole = tensor.partition.dim < 0;
  for (int part = first; part < (is_whole ? first + 1 : first + own); ++part) {
    for (Box& box : CutTensor(tensor.partition, shape, rows, part, parts)) {
      held.boxes.push_back(std::move(box));
    }
  }
  return held;
}

// Returns the number of rows of a box before an element of it, rounded to the nearest row.
int64_t RowsUpTo(const Box& box, int64_t element) {
  const int64_t rows = box.shape.empty() ? 1 : box.shape[0];
  const int64_t row_elements =
      std::max<int64_t>(ElementCount(box.shape) / std::max<int64_t>(rows, 1), 1);
  return std::clamp<int64_t>((element + row_elements / 2) / row_elements, 0, rows);
}

// The description of what one rank writes.
class RankBuilder {
 public:
  void Add(const HeldTensor& held, const std::vector<Box>& boxes) {
    const LogicalTensor& saved = *held.tensor->tensor;
    LogicalTensor& tensor = *description_.add_tensors();
    tensor.set_name(saved.name());
    tensor.set_role(saved.role());
    tensor.set_dtype(saved.dtype());
    *tensor.mutable_global_shape() = saved.global_shape();
    tensor.mutable_padded_shape()->Add(held.padded_shape.begin(), held.padded_shape.end());
    if (held.tensor->cut_is_known) *tensor.mutable_partition() = ToProto(held.tensor->partition);
    for (const Box& box : boxes) AddShard(box, /*file_index=*/0, /*file_offset=*/0, tensor);
  }

  void AddAlias(const LogicalTensor& alias) { *description_.add_tensors() = alias; }

  std::string Finish() const { return description_.SerializeAsString(); }

 private:
  RankState description_;
};

// Part `rank` of `ranks` of optimizer state: for each kind of state the neighbouring rows of
// neighbouring tensors, so that all kinds are cut alike.
class StateCutter {
 public:
  StateCutter(const std::vector<HeldTensor>& held, int rank, int ranks)
      : rank_(rank), ranks_(ranks) {
    for (const HeldTensor& tensor : held) {
      for (const Box& box : tensor.boxes) total_[tensor.tensor->state] += ElementCount(box.shape);
    }
  }

  // Returns the rank's boxes of the next tensor. Call for every tensor, in order.
  std::vector<Box> Next(const HeldTensor& held) {
    const int64_t total = total_[held.tensor->state];
    int64_t& offset = offset_[held.tensor->state];
    std::vector<Box> own;
    for (const Box& box : held.boxes) {
      const auto rows_before = [&](int rank) {
        return RowsUpTo(box, total / ranks_ * rank + total % ranks_ * rank / ranks_ - offset);
      };
      const int64_t begin = rows_before(rank_), end = rows_before(rank_ + 1);
      offset += ElementCount(box.shape);
      if (begin >= end) continue;
      own.push_back(box);
      if (box.shape.empty()) continue;
      own.back().global_offset[0] += begin;
      own.back().shape[0] = end - begin;
    }
    return own;
  }

 private:
  const int rank_, ranks_;
  std::map<int, int64_t> total_, offset_;  // elements, by kind of state
};

std::string DescribeRank(const std::vector<HeldTensor>& weights,
                         const std::vector<HeldTensor>& states,
                         const std::vector<const LogicalTensor*>& aliases, int data_rank,
                         int owners) {
  RankBuilder builder;
  for (const HeldTensor& held : weights) builder.Add(held, held.boxes);
  StateCutter cutter(states, data_rank, owners);
  for (const HeldTensor& held : states) {
    const std::vector<Box> own = cutter.Next(held);
    const bool is_empty =
        std::ranges::all_of(held.boxes, [](const Box& box) { return box.empty(); });
    if (!own.empty() || is_empty) builder.Add(held, own);
  }
  for (const LogicalTensor* alias : aliases) builder.AddAlias(*alias);
  return builder.Finish();
}

std::vector<const LogicalTensor*> AliasesOf(const Manifest& saved,
                                            const std::vector<HeldTensor>& weights,
                                            const std::vector<HeldTensor>& states) {
  std::set<std::string> names;
  for (const std::vector<HeldTensor>* all : {&weights, &states}) {
    for (const HeldTensor& held : *all) names.insert(held.tensor->tensor->name());
  }
  std::vector<const LogicalTensor*> aliases;
  for (const LogicalTensor& tensor : saved.tensors()) {
    if (names.contains(tensor.alias_of())) aliases.push_back(&tensor);
  }
  return aliases;
}

int CountGuesses(const std::vector<PartitionedTensor>& tensors, const Topology& topology) {
  return static_cast<int>(std::ranges::count_if(tensors, [&](const PartitionedTensor& tensor) {
    const Partition& partition = tensor.partition;
    const bool has_place =
        partition.place.layer >= 0 || partition.place.before_layers || partition.place.after_layers;
    const bool is_parameter =
        tensor.state < 0 && FromProto(tensor.tensor->role()) != TensorRole::kBuffer;
    return is_parameter &&
           ((topology.tensor > 1 && !tensor.cut_is_known) || (topology.stages() > 1 && !has_place));
  }));
}

}  // namespace

absl::StatusOr<RankLayout> LayOutRanks(const Manifest& saved, const Topology& topology,
                                       const LayoutOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckRanks(topology));
  const int parts = options.virtual_shards == 0 ? topology.tensor : options.virtual_shards;
  if (parts % topology.tensor != 0) {
    return InvalidArgument("--virtual-shards=", parts,
                           " is not a multiple of tp = ", topology.tensor);
  }
  const int own = parts / topology.tensor;
  TESSERA_ASSIGN_OR_RETURN(std::vector<PartitionedTensor> tensors,
                           PartitionTensors(saved, options.rules));
  PipelineStages pipeline(tensors, topology);
  TESSERA_RETURN_IF_ERROR(pipeline.CutLayers());
  std::ranges::stable_sort(tensors, {}, [&](const PartitionedTensor& tensor) {
    return pipeline.OrderOf(tensor.partition);
  });
  const bool zero = topology.zero_stage > 0;
  RankLayout layout = {.ranks = std::vector<std::string>(topology.world_size()),
                       .guessed = CountGuesses(tensors, topology)};
  for (int p = 0; p < topology.pipeline; ++p) {
    for (int t = 0; t < topology.tensor; ++t) {
      // The order of a trainer's memory: of each stage, all states of one kind side by side.
      std::map<std::pair<int, int>, std::vector<HeldTensor>> by_stage_and_state;
      for (const PartitionedTensor& tensor : tensors) {
        const std::optional<int> stage = pipeline.StageOf(tensor.partition, p);
        if (!stage.has_value()) continue;
        by_stage_and_state[{*stage, tensor.state}].push_back(Hold(tensor, t * own, own, parts));
      }
      std::vector<HeldTensor> weights, states;
      for (const auto& [place, held] : by_stage_and_state) {
        for (const HeldTensor& tensor : held) {
          const bool is_state = BelongsToOptimizer(FromProto(tensor.tensor->tensor->role()));
          (is_state ? states : weights).push_back(tensor);
        }
      }
      const auto aliases = AliasesOf(saved, weights, states);
      for (int d = 0; d < topology.data; ++d) {
        const int rank = topology.RankOf({.tensor = t, .data = d, .pipeline = p});
        layout.ranks[rank] =
            d > 0 && !zero
                ? layout.ranks[topology.RankOf({.tensor = t, .data = 0, .pipeline = p})]
                : DescribeRank(weights, states, aliases, zero ? d : 0, zero ? topology.data : 1);
      }
    }
  }
  return layout;
}

}  // namespace tessera::ckpt
