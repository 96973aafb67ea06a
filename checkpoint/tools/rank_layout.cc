#include "checkpoint/tools/rank_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/partition.h"
#include "checkpoint/layout/flat_range.h"
#include "checkpoint/plan/local_plan.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/tools/saved_parameters.h"
#include "checkpoint/tools/stage_layout.h"

namespace tessera::ckpt {
namespace {

using Place = Sharding::Place;

// Collects a rank's tensors by name, in order of first appearance.
class RankBuilder {
 public:
  void AddWeights(const StageLayout& stage) {
    for (const Buffer& buffer : stage.buffers) {
      AddBuffer(buffer, {0, buffer.elements()},
                [](const SavedParameter& parameter) { return parameter.weight; });
      AddAliases(buffer, /*of_weights=*/true);
    }
  }

  void AddStates(const StageLayout& stage, const std::vector<Range>& owned) {
    for (const Buffer& buffer : stage.buffers) {
      size_t states = 0;
      for (const Piece& piece : buffer.pieces) {
        states = std::max(states, piece.parameter->states.size());
      }
      for (size_t s = 0; s < states; ++s) {
        AddBuffer(buffer, OwnedOf(buffer, owned), [s](const SavedParameter& parameter) {
          return s < parameter.states.size() ? parameter.states[s] : nullptr;
        });
      }
      for (const Piece& piece : buffer.pieces) {
        for (const LogicalTensor* state : piece.parameter->shapeless) AddWhole(*state);
      }
      AddAliases(buffer, /*of_weights=*/false);
    }
  }

  std::string Finish() const { return DescribeState(state_).SerializeAsString(); }

 private:
  // A buffer lies in one bucket, so that what a rank owns of it is one range, counted from its
  // beginning.
  static Range OwnedOf(const Buffer& buffer, const std::vector<Range>& owned) {
    const int64_t end = buffer.begin + buffer.elements();
    auto range = std::ranges::upper_bound(owned, buffer.begin, {}, &Range::end);
    if (range == owned.end() || range->begin >= end) return {0, 0};
    return {std::max(range->begin, buffer.begin) - buffer.begin,
            std::min(range->end, end) - buffer.begin};
  }

  // tensor_of(parameter): which of its tensors, or null.
  template <typename TensorOf>
  void AddBuffer(const Buffer& buffer, const Range& range, const TensorOf& tensor_of) {
    const std::vector<Box> boxes = FlatRangeToBoxes(WholeBox(buffer.shape), range.begin, range.end);
    for (const Piece& piece : buffer.pieces) {
      const LogicalTensor* const saved = tensor_of(*piece.parameter);
      if (saved == nullptr) continue;
      ShardedTensor& tensor = Find(*saved);
      tensor.padded_shape = piece.padded_shape;
      for (const Box& box : boxes) {
        std::optional<Box> common = Intersect(box, {piece.local_offset, piece.shape});
        if (!common) continue;
        for (size_t d = 0; d < common->shape.size(); ++d) {
          common->global_offset[d] += piece.global_offset[d] - piece.local_offset[d];
        }
        tensor.shards.push_back({*std::move(common), nullptr, {}});
      }
    }
  }

  void AddWhole(const LogicalTensor& saved) {
    ShardedTensor& tensor = Find(saved);
    if (tensor.shards.empty())
      tensor.shards.push_back({WholeBox(tensor.global_shape), nullptr, {}});
  }

  void AddAliases(const Buffer& buffer, bool of_weights) {
    for (const Piece& piece : buffer.pieces) {
      for (const LogicalTensor* alias : piece.parameter->aliases) {
        if ((alias->alias_of() == piece.parameter->name) == of_weights) {
          Find(*alias).alias_of = alias->alias_of();
        }
      }
    }
  }

  ShardedTensor& Find(const LogicalTensor& saved) {
    const auto [at, is_new] = index_.try_emplace(saved.name(), state_.tensors.size());
    if (is_new) {
      ShardedTensor& tensor = state_.tensors.emplace_back();
      tensor.name = saved.name();
      tensor.role = saved.role();
      tensor.dtype = saved.dtype();
      tensor.global_shape = GlobalShape(saved);
      if (saved.has_partition()) tensor.partition = FromProto(saved.partition());
    }
    return state_.tensors[at->second];
  }

  StateDict state_;
  std::map<std::string, size_t> index_;
};

// Which layers a chunk of the pipeline has.
class Pipeline {
 public:
  Pipeline(const std::vector<SavedParameter>& parameters, const Topology& topology)
      : parameters_(parameters), stages_(topology.stages()) {
    std::map<int64_t, int64_t> matrix_elements;  // by layer
    int64_t head_elements = 0;
    for (const SavedParameter& parameter : parameters) {
      const Sharding& sharding = parameter.sharding;
      const int64_t elements = parameter.shape.size() >= 2 ? ElementCount(parameter.shape) : 0;
      if (sharding.place == Place::kLayer) {
        matrix_elements[sharding.layer] += elements;
      } else if (sharding.place == Place::kLastStage || parameter.on_both_ends) {
        head_elements += elements;
      }
    }
    for (const auto& [layer, elements] : matrix_elements) {
      const int64_t position = static_cast<int64_t>(position_.size());
      position_[layer] = position;
    }
    if (!matrix_elements.empty() && matrix_elements.begin()->second > 0) {
      head_layers_ = std::llround(static_cast<double>(head_elements) /
                                  static_cast<double>(matrix_elements.begin()->second));
    }
  }

  absl::Status Check() const {
    if (stages_ == 1 || layers() >= stages_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has ", layers(),
                                                   " layers, fewer than the ", stages_,
                                                   " chunks of the pipeline"));
  }

  // What chunk `chunk` of pipeline rank `rank` of `ranks` has, in the order of its flat buffer.
  std::vector<const SavedParameter*> ParametersOf(int rank, int ranks, int chunk) const {
    const int64_t stage = int64_t{chunk} * ranks + rank;
    const bool first = stage == 0, last = stage == stages_ - 1;
    const int64_t begin = Begin(stage), end = last ? layers() : Begin(stage + 1);
    std::vector<const SavedParameter*> front, middle, back;
    for (const SavedParameter& parameter : parameters_) {
      switch (parameter.sharding.place) {
        case Place::kFirstStage:
          if (first) front.push_back(&parameter);
          break;
        case Place::kLayer: {
          const int64_t position = position_.at(parameter.sharding.layer);
          if (begin <= position && position < end) middle.push_back(&parameter);
          break;
        }
        case Place::kLastStage:
          if (last) back.push_back(&parameter);
          break;
      }
    }
    for (const SavedParameter& parameter : parameters_) {
      if (last && !first && parameter.on_both_ends) back.push_back(&parameter);
    }
    std::ranges::stable_sort(middle, {}, [](const SavedParameter* p) { return p->sharding.layer; });
    front.insert(front.end(), middle.begin(), middle.end());
    front.insert(front.end(), back.begin(), back.end());
    return front;
  }

 private:
  int64_t layers() const { return static_cast<int64_t>(position_.size()); }

  // The last chunk, which has the head, gets as many layers fewer, one at least; the others get as
  // many as each other, and what is left over goes to those right before the last.
  int64_t Begin(int64_t stage) const {
    if (stage == 0) return 0;
    const int64_t of_last =
        std::max<int64_t>((layers() + head_layers_) / stages_ - head_layers_, 1);
    const int64_t others = stages_ - 1, of_others = layers() - of_last;
    const int64_t each = of_others / others, left_over = of_others % others;
    return stage * each + std::max<int64_t>(stage - (others - left_over), 0);
  }

  const std::vector<SavedParameter>& parameters_;
  const int64_t stages_;
  std::map<int64_t, int64_t> position_;  // layer -> its place among those that there are
  int64_t head_layers_ = 0;
};

absl::StatusOr<int64_t> VirtualShardCount(const Topology& topology, const LayoutOptions& options) {
  if (options.virtual_shards == 0) return topology.tensor;
  if (options.virtual_shards % topology.tensor == 0) return options.virtual_shards;
  return absl::InvalidArgumentError(absl::StrCat("--virtual-shards=", options.virtual_shards,
                                                 " is no multiple of tp = ", topology.tensor));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> LayOutRanks(const Manifest& saved,
                                                     const Topology& topology,
                                                     const LayoutOptions& options) {
  // Bounds the memory for the plans of all ranks.
  constexpr int kMaxRanks = 1 << 20;
  if (std::max(topology.world_size(), topology.stages()) > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "topology ", ToString(topology), ": ", std::max(topology.world_size(), topology.stages()),
        " ranks, at most ", kMaxRanks));
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t shards, VirtualShardCount(topology, options));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedParameter> parameters,
                           CollectParameters(saved, options.overrides));
  const Pipeline pipeline(parameters, topology);
  TESSERA_RETURN_IF_ERROR(pipeline.Check());
  const int64_t own_shards = shards / topology.tensor;
  const bool zero = topology.zero_stage > 0 && topology.data > 1;
  std::vector<std::string> ranks(topology.world_size());
  for (int p = 0; p < topology.pipeline; ++p) {
    for (int t = 0; t < topology.tensor; ++t) {
      const VirtualShards own = {.all = shards,
                                 .first = t * own_shards,
                                 .own = own_shards,
                                 .vocabulary_multiple = options.vocabulary_multiple};
      std::vector<StageLayout> chunks;
      for (int c = 0; c < topology.virtual_pipeline; ++c) {
        chunks.push_back(LayOutStage(pipeline.ParametersOf(p, topology.pipeline, c), own));
      }
      for (int d = 0; d < topology.data; ++d) {
        std::string& rank = ranks[(size_t{1} * p * topology.data + d) * topology.tensor + t];
        if (d > 0 && !zero) {
          rank = ranks[(size_t{1} * p * topology.data) * topology.tensor + t];
          continue;
        }
        RankBuilder builder;
        for (const StageLayout& chunk : chunks) builder.AddWeights(chunk);
        for (const StageLayout& chunk : chunks) {
          builder.AddStates(chunk,
                            zero ? OwnedRanges(chunk, options.bucket_elements, topology.data, d)
                                 : std::vector<Range>{{0, chunk.flat_elements}});
        }
        rank = builder.Finish();
      }
    }
  }
  return ranks;
}

}  // namespace tessera::ckpt
