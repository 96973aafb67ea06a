#include "checkpoint/tools/rank_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/base/checked_math.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/local_plan.h"
#include "checkpoint/engine/state_dict.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/layout/flat_range.h"
#include "checkpoint/tools/saved_parameters.h"

namespace tessera::ckpt {
namespace {

using Place = Sharding::Place;

// Buffers begin at multiples of so many elements, and ZeRO's pieces are cut at such.
constexpr int64_t kAlignmentElements = 256;

int64_t Aligned(int64_t elements) { return RoundUp(elements, kAlignmentElements); }

// Part of a parameter inside a buffer.
struct Piece {
  const SavedParameter* parameter;
  std::vector<int64_t> global_offset;
  std::vector<int64_t> local_offset;
  Shape shape;
  Shape padded_shape;  // of the parameter; empty: none
};

// One parameter, one virtual shard of it, or of several that are fused, in the flat buffer of a
// stage.
struct Buffer {
  std::vector<Piece> pieces;
  Shape shape;
  bool alone = false;  // a tied table has a bucket of its own
  int64_t begin = 0;   // in the flat buffer
  int64_t elements() const { return ElementCount(shape); }
};

// A stage as one rank of tensor parallelism holds it.
struct StageLayout {
  std::vector<Buffer> buffers;
  int64_t flat_elements = 0;
};

// Elements [begin, end) of the flat buffer.
struct Range {
  int64_t begin;
  int64_t end;
};

// Parameters that are cut into virtual shards together: all of the first shard come before any of
// the second.
using Fused = std::vector<const SavedParameter*>;

class StageBuilder {
 public:
  // `own_shards` of `shards` virtual ones, from `first_shard` on, are this rank's.
  StageBuilder(int64_t shards, int64_t first_shard, int64_t own_shards, int64_t vocabulary_multiple)
      : shards_(shards),
        first_shard_(first_shard),
        own_shards_(own_shards),
        vocabulary_multiple_(vocabulary_multiple) {}

  StageLayout Build(const std::vector<const SavedParameter*>& parameters) {
    for (size_t i = 0; i < parameters.size();) {
      if (parameters[i]->sharding.dim < 0) {
        Append(WholeBuffer(*parameters[i++]));
        continue;
      }
      std::vector<Fused> together;
      const int64_t layer = parameters[i]->sharding.layer;
      do {
        i += TakeFused(parameters, i, together);
      } while (i < parameters.size() && !together.back()[0]->sharding.is_vocabulary &&
               parameters[i]->sharding.dim >= 0 && parameters[i]->sharding.layer == layer &&
               !parameters[i]->sharding.is_vocabulary);
      for (int64_t shard = first_shard_; shard < first_shard_ + own_shards_; ++shard) {
        for (const Fused& fused : together) Append(ShardBuffer(fused, shard));
      }
    }
    return std::move(layout_);
  }

 private:
  static size_t TakeFused(const std::vector<const SavedParameter*>& parameters, size_t first,
                          std::vector<Fused>& out) {
    const Sharding& sharding = parameters[first]->sharding;
    Fused fused = {parameters[first]};
    for (size_t i = first + 1; i < parameters.size() && !sharding.fused.empty(); ++i) {
      const Sharding& next = parameters[i]->sharding;
      if (next.fused != sharding.fused || next.layer != sharding.layer ||
          !SameButFirst(*parameters[first], *parameters[i])) {
        break;
      }
      fused.push_back(parameters[i]);
    }
    out.push_back(std::move(fused));
    return out.back().size();
  }

  static bool SameButFirst(const SavedParameter& a, const SavedParameter& b) {
    return std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1, b.shape.end());
  }

  static Buffer WholeBuffer(const SavedParameter& parameter) {
    const std::vector<int64_t> origin(parameter.shape.size(), 0);
    return {{{&parameter, origin, origin, parameter.shape, {}}},
            parameter.shape,
            parameter.on_both_ends};
  }

  Buffer ShardBuffer(const Fused& fused, int64_t shard) const {
    if (fused[0]->sharding.is_vocabulary) return TableBuffer(*fused[0], shard);
    const int dim = fused[0]->sharding.dim;
    Buffer buffer = {.shape = fused[0]->shape, .alone = fused[0]->on_both_ends};
    buffer.shape[dim] = 0;
    for (const SavedParameter* parameter : fused) {
      const int64_t sections = parameter->sharding.sections;
      const int64_t extent = parameter->shape[dim] / sections;
      for (int64_t s = 0; s < sections; ++s) {
        const int64_t begin = s * extent + extent * shard / shards_;
        const int64_t end = s * extent + extent * (shard + 1) / shards_;
        AppendPiece(*parameter, dim, begin, end, buffer);
      }
    }
    return buffer;
  }

  static void AppendPiece(const SavedParameter& parameter, int dim, int64_t begin, int64_t end,
                          Buffer& buffer) {
    if (!buffer.pieces.empty()) {
      Piece& last = buffer.pieces.back();
      if (last.parameter == &parameter && last.global_offset[dim] + last.shape[dim] == begin) {
        last.shape[dim] += end - begin;
        buffer.shape[dim] += end - begin;
        return;
      }
    }
    const std::vector<int64_t> origin(parameter.shape.size(), 0);
    Piece piece = {&parameter, origin, origin, parameter.shape, {}};
    piece.global_offset[dim] = begin;
    piece.local_offset[dim] = buffer.shape[dim];
    piece.shape[dim] = end - begin;
    buffer.shape[dim] += end - begin;
    buffer.pieces.push_back(std::move(piece));
  }

  Buffer TableBuffer(const SavedParameter& table, int64_t shard) const {
    const int64_t all = table.shape[0], padded = PaddedRows(table), rows = padded / shards_;
    const int64_t begin = std::min(shard * rows, all), end = std::min((shard + 1) * rows, all);
    Buffer buffer = {.shape = {rows, table.shape[1]}, .alone = !table.aliases.empty()};
    buffer.pieces.push_back({&table, {begin, 0}, {0, 0}, {end - begin, table.shape[1]}, {}});
    if (padded > all) buffer.pieces[0].padded_shape = {padded, table.shape[1]};
    return buffer;
  }

  int64_t PaddedRows(const SavedParameter& table) const {
    const int64_t all = table.shape[0];
    int64_t multiple = vocabulary_multiple_;
    if (multiple == 0) {
      // The saved padding was a multiple of something, of which the power of two is what everybody
      // takes.
      multiple = 1;
      const int64_t padded = table.padded_shape.empty() ? all : table.padded_shape[0];
      while (padded > all && padded % (2 * multiple) == 0) multiple *= 2;
    }
    return RoundUp(all, std::lcm(multiple, shards_));
  }

  void Append(Buffer buffer) {
    buffer.begin = layout_.flat_elements;
    layout_.flat_elements += Aligned(buffer.elements());
    layout_.buffers.push_back(std::move(buffer));
  }

  const int64_t shards_, first_shard_, own_shards_, vocabulary_multiple_;
  StageLayout layout_;
};

// The parts of the flat buffer that one of `ranks` ranks of ZeRO owns, ascending: a piece of each
// bucket. Buckets are filled from the end of the buffer, the order in which a backward pass
// completes them, with neighbours up to `bucket_elements`, one at least.
std::vector<Range> OwnedRanges(const StageLayout& stage, int64_t bucket_elements, int64_t ranks,
                               int64_t rank) {
  std::vector<Range> buckets;
  int64_t end = stage.flat_elements;
  bool open = false;  // whether the last bucket takes more
  for (size_t i = stage.buffers.size(); i-- > 0;) {
    const Buffer& buffer = stage.buffers[i];
    if (open && !buffer.alone && buckets.back().end - buffer.begin <= bucket_elements) {
      buckets.back().begin = buffer.begin;
    } else {
      buckets.push_back({buffer.begin, end});
    }
    open = !buffer.alone;
    end = buffer.begin;
  }
  std::vector<Range> owned;
  for (size_t b = buckets.size(); b-- > 0;) {
    const int64_t elements = buckets[b].end - buckets[b].begin;
    const int64_t blocks = CeilDivide(elements, kAlignmentElements);
    const int64_t each = blocks / ranks, more = blocks % ranks;
    const auto cut = [&](int64_t r) {
      return buckets[b].begin +
             std::min((r * each + std::min(r, more)) * kAlignmentElements, elements);
    };
    if (cut(rank) < cut(rank + 1)) owned.push_back({cut(rank), cut(rank + 1)});
  }
  return owned;
}

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
    }
    return state_.tensors[at->second];
  }

  StateDict state_;
  std::map<std::string, size_t> index_;
};

// Which layers a chunk of the pipeline has.
class Pipeline {
 public:
  Pipeline(const std::vector<SavedParameter>& parameters, const ParallelSizes& sizes)
      : parameters_(parameters), stages_(sizes.stages()) {
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

absl::StatusOr<int64_t> VirtualShards(const ParallelSizes& sizes, const LayoutOptions& options) {
  if (options.virtual_shards == 0) return sizes.tensor;
  if (options.virtual_shards % sizes.tensor == 0) return options.virtual_shards;
  return absl::InvalidArgumentError(absl::StrCat("--virtual-shards=", options.virtual_shards,
                                                 " is no multiple of tp = ", sizes.tensor));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> LayOutRanks(const Manifest& saved,
                                                     const ParallelSizes& sizes,
                                                     const LayoutOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t shards, VirtualShards(sizes, options));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedParameter> parameters,
                           CollectParameters(saved, options.overrides));
  const Pipeline pipeline(parameters, sizes);
  TESSERA_RETURN_IF_ERROR(pipeline.Check());
  const int64_t own_shards = shards / sizes.tensor;
  const bool zero = sizes.zero_stage > 0 && sizes.data > 1;
  std::vector<std::string> ranks(sizes.world_size());
  for (int p = 0; p < sizes.pipeline; ++p) {
    for (int t = 0; t < sizes.tensor; ++t) {
      std::vector<StageLayout> chunks;
      for (int c = 0; c < sizes.virtual_pipeline; ++c) {
        chunks.push_back(
            StageBuilder(shards, t * own_shards, own_shards, options.vocabulary_multiple)
                .Build(pipeline.ParametersOf(p, sizes.pipeline, c)));
      }
      for (int d = 0; d < sizes.data; ++d) {
        std::string& rank = ranks[(size_t{1} * p * sizes.data + d) * sizes.tensor + t];
        if (d > 0 && !zero) {
          rank = ranks[(size_t{1} * p * sizes.data) * sizes.tensor + t];
          continue;
        }
        RankBuilder builder;
        for (const StageLayout& chunk : chunks) builder.AddWeights(chunk);
        for (const StageLayout& chunk : chunks) {
          builder.AddStates(chunk, zero ? OwnedRanges(chunk, options.bucket_elements, sizes.data, d)
                                        : std::vector<Range>{{0, chunk.flat_elements}});
        }
        rank = builder.Finish();
      }
    }
  }
  return ranks;
}

}  // namespace tessera::ckpt
