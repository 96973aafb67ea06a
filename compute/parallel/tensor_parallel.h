#ifndef TESSERA_COMPUTE_PARALLEL_TENSOR_PARALLEL_H_
#define TESSERA_COMPUTE_PARALLEL_TENSOR_PARALLEL_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace tessera {

// The split of a model's layers over the ranks of the tensor axis, and the collectives of these
// ranks.
//
// Layers are divided into S virtual shards (`shards`), whatever the number of ranks. Rank r of P
// holds the S / P shards from r * S / P on. It computes each with the same calls as any other rank
// would. Sums over shards are taken in the binary tree T(0, S) (see ReduceOp): first within a rank,
// then over ranks. If the number of shards is a power of two, results are therefore bitwise the
// same for every number of ranks that divides it.
//
// With sequence parallelism the rows of activations between two tensor-parallel regions are split
// over the ranks, in contiguous runs.
//
// The collectives return immediately on a single rank; otherwise every rank of the axis calls them
// in the same order. Errors: those of the communicator. `what` names the data in diagnostics.
class TensorParallel {
 public:
  constexpr TensorParallel() = default;  // one rank, one shard
  // `communicator` (of the tensor axis; null: one rank) must outlive this object. Precondition: its
  // size divides `shards`, and shards / size is a power of two if size > 1.
  TensorParallel(Communicator* communicator, int shards, bool sequence_parallel);

  int size() const { return size_; }
  int rank() const { return rank_; }
  int shards() const { return shards_; }  // S
  int local_shards() const { return shards_ / size_; }
  int first_shard() const { return rank_ * local_shards(); }
  bool sequence_parallel() const { return sequence_parallel_; }  // false on a single rank

  // In the methods below, x is contiguous, and its first dim is divided into equal pieces by rank.
  // Replaces x by the sum of all ranks' x.
  absl::Status AllReduce(const TensorView& x, std::string_view what) const;
  // Replaces this rank's piece of x by its piece of the sum of all ranks' x; the rest is unchanged.
  absl::Status ReduceScatter(const TensorView& x, std::string_view what) const;
  // Replaces every piece of x by the piece of the rank that owns it.
  absl::Status AllGather(const TensorView& x, std::string_view what) const;
  // Does what AllGather() does, with rows[i] rows in rank i's piece.
  absl::Status AllGather(const TensorView& x, std::span<const int64_t> rows,
                         std::string_view what) const;

 private:
  Communicator* communicator_ = nullptr;
  int size_ = 1;
  int rank_ = 0;
  int shards_ = 1;
  bool sequence_parallel_ = false;
};

inline constexpr TensorParallel kNoTensorParallel;

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_TENSOR_PARALLEL_H_
