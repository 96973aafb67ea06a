#include "models/layers/declare.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace tessera {
namespace {

int ShardIndex(const VirtualShard& shard) { return shard.count == 1 ? -1 : shard.index; }

// Whether `next` goes on where `piece` ends, in the logical tensor as in the buffer.
bool Continues(const ParameterPiece& piece, const ParameterPiece& next, int dim) {
  return piece.name == next.name &&
         piece.global_offset[dim] + piece.shape[dim] == next.global_offset[dim];
}

}  // namespace

std::vector<VirtualShard> LocalShards(const TensorParallel& tensor_parallel) {
  std::vector<VirtualShard> shards;
  for (int i = 0; i < tensor_parallel.local_shards(); ++i) {
    shards.push_back({tensor_parallel.first_shard() + i, tensor_parallel.shards()});
  }
  return shards;
}

Parameter WholeParameter(std::string name, Shape shape, Initialization init) {
  return ShardedParameter(std::move(name), std::move(shape), /*dim=*/0, VirtualShard(), init);
}

Parameter ShardedParameter(const std::vector<Section>& sections, int dim, const VirtualShard& shard,
                           Initialization init) {
  Parameter parameter;
  parameter.init = init;
  parameter.shard = ShardIndex(shard);
  parameter.shape = sections[0].global_shape;
  parameter.weight_decay = parameter.shape.size() > 1;
  parameter.shape[dim] = 0;
  for (const Section& section : sections) {
    CHECK(section.extent % shard.count == 0)
        << section.name << ": " << section.extent << " over " << shard.count << " shards";
    const int64_t extent = section.extent / shard.count;
    ParameterPiece piece;
    piece.name = section.name;
    piece.global_shape = piece.shape = section.global_shape;
    piece.global_offset.assign(piece.shape.size(), 0);
    piece.local_offset = piece.global_offset;
    piece.global_offset[dim] = section.begin + shard.index * extent;
    piece.local_offset[dim] = parameter.shape[dim];
    piece.shape[dim] = extent;
    parameter.shape[dim] += extent;
    if (!parameter.pieces.empty() && Continues(parameter.pieces.back(), piece, dim)) {
      parameter.pieces.back().shape[dim] += extent;
    } else {
      parameter.pieces.push_back(std::move(piece));
    }
  }
  return parameter;
}

Parameter ShardedParameter(std::string name, Shape global_shape, int dim, const VirtualShard& shard,
                           Initialization init) {
  const int64_t extent = global_shape[dim];
  return ShardedParameter({{std::move(name), std::move(global_shape), 0, extent}}, dim, shard,
                          init);
}

Parameter TableParameter(std::string name, Shape global_shape, int64_t padded_rows,
                         const VirtualShard& shard, Initialization init) {
  const int64_t all = global_shape[0], columns = global_shape[1];
  CHECK(padded_rows >= all && padded_rows % shard.count == 0)
      << name << ": " << padded_rows << " rows over " << shard.count << " shards";
  const int64_t rows = padded_rows / shard.count;
  const int64_t begin = std::min(shard.index * rows, all);
  const int64_t end = std::min((shard.index + 1) * rows, all);
  Parameter parameter;
  parameter.init = init;
  parameter.shard = ShardIndex(shard);
  parameter.shape = {rows, columns};
  ParameterPiece piece{std::move(name), global_shape, {begin, 0}, {0, 0}, {end - begin, columns}};
  if (padded_rows > all) piece.padded_global_shape = {padded_rows, columns};
  parameter.pieces.push_back(std::move(piece));
  return parameter;
}

}  // namespace tessera
