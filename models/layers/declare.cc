#include "models/layers/declare.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace tessera {
namespace {

int ShardIndex(const VirtualShard& shard) { return shard.count == 1 ? -1 : shard.index; }

// Returns whether `next` begins where `piece` ends, both in the logical tensor and in the buffer.
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

Parameter WholeParameter(std::string name, const Shape& shape, Place place, Initialization init) {
  Parameter parameter;
  parameter.init = init;
  parameter.shape = shape;
  parameter.weight_decay = shape.size() > 1;
  const std::vector<int64_t> origin(shape.size(), 0);
  parameter.pieces.push_back({.name = std::move(name),
                              .global_shape = shape,
                              .global_offset = origin,
                              .local_offset = origin,
                              .shape = shape,
                              .partition = {.place = place}});
  return parameter;
}

Parameter ShardedParameter(const std::vector<FusedTensor>& tensors, const Partition& partition,
                           const VirtualShard& shard, Initialization init) {
  const int dim = partition.dim;
  Parameter parameter;
  parameter.init = init;
  parameter.shard = ShardIndex(shard);
  parameter.shape = tensors[0].global_shape;
  parameter.weight_decay = parameter.shape.size() > 1;
  parameter.shape[dim] = 0;
  for (const FusedTensor& tensor : tensors) {
    const int64_t parts = int64_t{partition.sections} * shard.count;
    CHECK(tensor.global_shape[dim] % parts == 0)
        << tensor.name << ": " << tensor.global_shape[dim] << " in " << partition.sections
        << " sections over " << shard.count << " shards";
    const int64_t extent = tensor.global_shape[dim] / parts;
    for (int section = 0; section < partition.sections; ++section) {
      ParameterPiece piece;
      piece.name = tensor.name;
      piece.partition = partition;
      piece.global_shape = piece.shape = tensor.global_shape;
      piece.global_offset.assign(piece.shape.size(), 0);
      piece.local_offset = piece.global_offset;
      piece.global_offset[dim] = (int64_t{section} * shard.count + shard.index) * extent;
      piece.local_offset[dim] = parameter.shape[dim];
      piece.shape[dim] = extent;
      parameter.shape[dim] += extent;
      if (!parameter.pieces.empty() && Continues(parameter.pieces.back(), piece, dim)) {
        parameter.pieces.back().shape[dim] += extent;
      } else {
        parameter.pieces.push_back(std::move(piece));
      }
    }
  }
  return parameter;
}

Parameter ShardedParameter(std::string name, Shape global_shape, const Partition& partition,
                           const VirtualShard& shard, Initialization init) {
  return ShardedParameter({{std::move(name), std::move(global_shape)}}, partition, shard, init);
}

Parameter TableParameter(std::string name, Shape global_shape, int64_t padded_rows, Place place,
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
  piece.partition = {.dim = 0, .padded = true, .place = place};
  if (padded_rows > all) piece.padded_global_shape = {padded_rows, columns};
  parameter.pieces.push_back(std::move(piece));
  return parameter;
}

}  // namespace tessera
