#ifndef TESSERA_CHECKPOINT_PLAN_SAVE_PLAN_H_
#define TESSERA_CHECKPOINT_PLAN_SAVE_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/checked_math.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/plan/plan.pb.h"
#include "layout/box.h"

namespace tessera::ckpt {

struct SavePlanOptions {
  // The size above which a rank's data of one kind is split into more files, and single boxes are
  // split along their first dims.
  uint64_t max_file_bytes = uint64_t{4} << 30;
  // The size above which replicated boxes are split along their first dims if that helps to balance
  // their holders. Those of at most 1/16 of it are written by the lowest rank that holds them,
  // since ranks may differ in them: the statistics of batch normalization are saved from one.
  uint64_t min_split_bytes = uint64_t{256} << 10;
  uint32_t checksum_chunk_bytes = 1 << 20;
};

struct SavePlan {
  // Tensors with all their shards, files with path, size and chunk size. Digests and checksums are
  // added after the writing.
  Manifest manifest;
  std::vector<RankPlan> ranks;  // which box goes to which bytes, one entry per rank
};

// Makes one plan for all ranks. `ranks` are their descriptions: serialized RankStates, by rank.
//
// Every element of every tensor is written exactly once. Identical boxes on several ranks are
// written by one of them: small ones by the lowest, others so that bytes are balanced. If boxes of
// different ranks overlap in part, only one rank writes the common elements. The result is a pure
// function of the input.
//
// Weights and buffers are stored in model-* files, master weights and optimizer states in
// optimizer-* files.
//
// Errors: those of MergeRankStates. Cost: O(n log n) for n shards in the distinct descriptions of
// all ranks.
absl::StatusOr<SavePlan> PlanSave(std::span<const std::string> ranks,
                                  const SavePlanOptions& options);

// Splits a box of `bytes` bytes along its first dims into pieces of at most `limit` bytes, but at
// least one element. Calls fn(piece, its bytes) in row-major order.
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
  const int64_t pieces = CeilDivide(rows, rows_per_piece);
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

// Returns the part of its tensor that an item covers.
Box ItemBox(const WriteItem& item);

// Returns the bytes before the data of a planned file, the same on the planning and the writing
// rank.
absl::StatusOr<std::string> DataFileHeader(const RankState& local, const FilePlan& file);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_SAVE_PLAN_H_
