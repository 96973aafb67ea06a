#ifndef TESSERA_TRAINER_PARALLEL_TENSOR_PARALLEL_H_
#define TESSERA_TRAINER_PARALLEL_TENSOR_PARALLEL_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "trainer/comm/communicator.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// How the layers of a model are split over the ranks of the tensor axis, and what those ranks
// exchange.
//
// Layers are cut into `shards` virtual shards, whatever the number of ranks: rank r of P holds the
// S / P shards from r * S / P on, and computes each by the same calls as anybody else would. Sums
// over shards are taken in the binary tree T(0, S) (see ReduceOp): inside a rank first, then over
// ranks. With a power of two of shards, results are therefore bitwise the same for every number of
// ranks that divides it.
//
// With sequence parallelism the rows of activations between two tensor-parallel regions are split
// over the ranks, in contiguous runs.
//
// The collectives return at once on a single rank; elsewhere every rank of the axis calls them in
// the same order. Errors: the communicator's. `what` names the data in diagnoses.
class TensorParallel {
 public:
  constexpr TensorParallel() = default;  // one rank, one shard
  // `communicator` (of the tensor axis; null: one rank) must outlive this. Precondition: its size
  // divides `shards`, and shards / size is a power of two where size > 1.
  TensorParallel(Communicator* communicator, int shards, bool sequence_parallel);

  int size() const { return size_; }
  int rank() const { return rank_; }
  int shards() const { return shards_; }  // S
  int local_shards() const { return shards_ / size_; }
  int first_shard() const { return rank_ * local_shards(); }
  bool sequence_parallel() const { return sequence_parallel_; }  // false on a single rank

  // Below, x is contiguous, and its first dim is cut into equal pieces by rank.
  // x becomes the sum of all ranks' x.
  absl::Status AllReduce(const TensorView& x, std::string_view what) const;
  // This rank's piece of x becomes its piece of the sum; the rest is left alone.
  absl::Status ReduceScatter(const TensorView& x, std::string_view what) const;
  // Every rank's own piece of its x becomes that piece of all ranks' x.
  absl::Status AllGather(const TensorView& x, std::string_view what) const;
  // The same with rows[i] rows in rank i's piece.
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

#endif  // TESSERA_TRAINER_PARALLEL_TENSOR_PARALLEL_H_
