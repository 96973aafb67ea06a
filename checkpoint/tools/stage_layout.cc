#include "checkpoint/tools/stage_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked_math.h"

namespace tessera::ckpt {
namespace {

// Buffers begin at multiples of so many elements, and ZeRO's pieces are cut at such.
constexpr int64_t kAlignmentElements = 256;

int64_t Aligned(int64_t elements) { return RoundUp(elements, kAlignmentElements); }

// Parameters of one buffer.
using Fused = std::vector<const SavedParameter*>;

class StageBuilder {
 public:
  explicit StageBuilder(const VirtualShards& shards) : shards_(shards) {}

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
      for (int64_t shard = shards_.first; shard < shards_.first + shards_.own; ++shard) {
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
        const int64_t begin = s * extent + extent * shard / shards_.all;
        const int64_t end = s * extent + extent * (shard + 1) / shards_.all;
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
    const int64_t all = table.shape[0], padded = PaddedRows(table), rows = padded / shards_.all;
    const int64_t begin = std::min(shard * rows, all), end = std::min((shard + 1) * rows, all);
    Buffer buffer = {.shape = {rows, table.shape[1]}, .alone = !table.aliases.empty()};
    buffer.pieces.push_back({&table, {begin, 0}, {0, 0}, {end - begin, table.shape[1]}, {}});
    if (padded > all) buffer.pieces[0].padded_shape = {padded, table.shape[1]};
    return buffer;
  }

  int64_t PaddedRows(const SavedParameter& table) const {
    const int64_t all = table.shape[0];
    int64_t multiple = shards_.vocabulary_multiple;
    if (multiple == 0) {
      // The saved padding was a multiple of something, of which the power of two is what everybody
      // takes.
      multiple = 1;
      const int64_t padded = table.padded_shape.empty() ? all : table.padded_shape[0];
      while (padded > all && padded % (2 * multiple) == 0) multiple *= 2;
    }
    return RoundUp(all, std::lcm(multiple, shards_.all));
  }

  void Append(Buffer buffer) {
    buffer.begin = layout_.flat_elements;
    layout_.flat_elements += Aligned(buffer.elements());
    layout_.buffers.push_back(std::move(buffer));
  }

  const VirtualShards& shards_;
  StageLayout layout_;
};

}  // namespace

StageLayout LayOutStage(const std::vector<const SavedParameter*>& parameters,
                        const VirtualShards& shards) {
  return StageBuilder(shards).Build(parameters);
}

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

}  // namespace tessera::ckpt
