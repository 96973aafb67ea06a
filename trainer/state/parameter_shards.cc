#include "trainer/state/parameter_shards.h"

#include <optional>
#include <utility>

#include "checkpoint/include/checkpoint.h"
#include "layout/box.h"

namespace tessera {
namespace {

// Converts a box from the coordinates of the local buffer to those of the piece's logical tensor.
Box ToLogical(const Box& local, const ParameterPiece& piece) {
  Box logical = local;
  for (size_t dim = 0; dim < logical.global_offset.size(); ++dim) {
    logical.global_offset[dim] += piece.global_offset[dim] - piece.local_offset[dim];
  }
  return logical;
}

int64_t FlatIndex(const std::vector<int64_t>& offset, const std::vector<int64_t>& strides) {
  int64_t index = 0;
  for (size_t dim = 0; dim < offset.size(); ++dim) index += offset[dim] * strides[dim];
  return index;
}

}  // namespace

std::vector<LogicalShards> ShardsOfRange(const Parameter& parameter, int64_t begin, int64_t end,
                                         void* origin, int64_t element_size_bytes) {
  const std::vector<int64_t> strides = ContiguousStrides(parameter.shape);
  const std::vector<Box> boxes = FlatRangeToBoxes(WholeBox(parameter.shape), begin, end);
  std::vector<LogicalShards> result;
  for (const ParameterPiece& piece : parameter.pieces) {
    LogicalShards logical{.piece = &piece, .shards = {}};
    const Box piece_box{piece.local_offset, piece.shape};
    for (const Box& box : boxes) {
      const std::optional<Box> common = Intersect(box, piece_box);
      if (!common.has_value()) continue;
      logical.shards.push_back(
          {.box = ToLogical(*common, piece),
           .data = static_cast<char*>(origin) +
                   FlatIndex(common->global_offset, strides) * element_size_bytes,
           .strides = strides});
    }
    result.push_back(std::move(logical));
  }
  return result;
}

}  // namespace tessera
