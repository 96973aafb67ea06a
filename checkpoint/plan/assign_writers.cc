#include "checkpoint/plan/assign_writers.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "checkpoint/plan/least_loaded.h"

namespace tessera::ckpt {
namespace {

// Splits a box into pieces of at most `limit` bytes along its first dims, as far as its elements
// allow, in row-major order.
template <typename Function>
void ForEachPiece(const Box& box, uint64_t bytes, uint64_t limit, Function&& fn) {
  size_t dim = 0;
  while (dim < box.shape.size() && box.shape[dim] == 1) ++dim;
  if (bytes <= limit || dim == box.shape.size()) {
    fn(box, bytes);
    return;
  }
  const int64_t rows = box.shape[dim];
  const uint64_t row_bytes = bytes / rows;
  const int64_t rows_per_piece = std::max<int64_t>(limit / row_bytes, 1);
  const int64_t pieces = (rows + rows_per_piece - 1) / rows_per_piece;
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t begin = rows * p / pieces, end = rows * (p + 1) / pieces;
    Box piece = box;
    piece.global_offset[dim] += begin;
    piece.shape[dim] = end - begin;
    if (row_bytes > limit) {
      ForEachPiece(piece, row_bytes, limit, fn);
    } else {
      fn(piece, row_bytes * (end - begin));
    }
  }
}

uint64_t TotalBytes(const MergedState& state) {
  uint64_t total = 0;
  for (const MergedTensor& tensor : state.tensors) {
    for (const HeldBox& held : tensor.boxes) total += tensor.BytesOf(held);
  }
  return total;
}

void SetWriter(const MergedState& state, const HeldBox& held, uint32_t rank, Assignment& out) {
  for (const ShardRef& shard : held.shards) {
    const std::vector<Describer>& describers = state.descriptions[shard.description].describers;
    const auto at = std::ranges::lower_bound(describers, rank, {}, &Describer::rank);
    if (at == describers.end() || at->rank != rank) continue;
    out.rank = rank;
    out.local_tensor = at->local_tensor;
    out.local_shard = shard.shard;
    return;
  }
}

}  // namespace

std::vector<Assignment> AssignWriters(const MergedState& state, size_t ranks,
                                      uint64_t max_box_bytes, uint64_t min_split_bytes) {
  const uint64_t replica_limit =
      std::min(max_box_bytes,
               std::max(min_split_bytes, TotalBytes(state) / std::max<size_t>(ranks, 1) / 32));
  struct Open {
    uint64_t bytes;
    size_t assignment;
    const HeldBox* held;
  };
  std::vector<uint64_t> load(ranks, 0);
  std::vector<Open> open;
  std::vector<Assignment> assignments;
  for (uint32_t t = 0; t < state.tensors.size(); ++t) {
    for (const HeldBox& held : state.tensors[t].boxes) {
      const std::vector<uint32_t>& holders = state.rank_sets[held.rank_set];
      const bool replicated = holders.size() > 1;
      ForEachPiece(held.box, state.tensors[t].BytesOf(held),
                   std::max<uint64_t>(replicated ? replica_limit : max_box_bytes, 1),
                   [&](const Box& box, uint64_t bytes) {
                     if (replicated) open.push_back({bytes, assignments.size(), &held});
                     assignments.push_back({t, box, bytes, 0, 0, 0});
                     if (replicated) return;
                     load[holders[0]] += bytes;
                     SetWriter(state, held, holders[0], assignments.back());
                   });
    }
  }
  std::ranges::stable_sort(open, std::greater(), &Open::bytes);
  absl::flat_hash_map<uint32_t, LeastLoaded> queues;  // by rank set
  for (const Open& o : open) {
    const uint32_t set = o.held->rank_set;
    LeastLoaded& queue = queues.try_emplace(set, state.rank_sets[set], load).first->second;
    SetWriter(state, *o.held, queue.Take(o.bytes, load), assignments[o.assignment]);
  }
  return assignments;
}

}  // namespace tessera::ckpt
