#include "compute/parallel/tensor_parallel.h"

#include <bit>
#include <numeric>
#include <vector>

#include "glog/logging.h"

namespace tessera {

TensorParallel::TensorParallel(Communicator* communicator, int shards, bool sequence_parallel)
    : communicator_(communicator),
      size_(communicator == nullptr ? 1 : communicator->size()),
      rank_(communicator == nullptr ? 0 : communicator->rank()),
      shards_(shards),
      sequence_parallel_(sequence_parallel && size_ > 1) {
  CHECK(shards > 0 && shards % size_ == 0) << shards << " shards over " << size_ << " ranks";
  CHECK(size_ == 1 || std::has_single_bit(static_cast<unsigned>(local_shards())))
      << shards << " shards over " << size_ << " ranks: a rank's sum is no part of the tree";
}

absl::Status TensorParallel::AllReduce(const TensorView& x, std::string_view what) const {
  if (size_ == 1) return absl::OkStatus();
  return communicator_->StartAllReduce(x, ReduceOp::kSum, {.what = what}).Follow();
}

absl::Status TensorParallel::ReduceScatter(const TensorView& x, std::string_view what) const {
  if (size_ == 1) return absl::OkStatus();
  const int64_t rows = x.dim(0) / size_;
  const TensorView mine = x.Slice(0, rank_ * rows, (rank_ + 1) * rows);
  return communicator_->StartReduceScatter(x, mine, ReduceOp::kSum, {}, {.what = what}).Follow();
}

absl::Status TensorParallel::AllGather(const TensorView& x, std::string_view what) const {
  const std::vector<int64_t> rows(size_, x.dim(0) / size_);
  return AllGather(x, rows, what);
}

absl::Status TensorParallel::AllGather(const TensorView& x, std::span<const int64_t> rows,
                                       std::string_view what) const {
  if (size_ == 1) return absl::OkStatus();
  const int64_t row_elements = x.dim(0) == 0 ? 0 : x.elements() / x.dim(0);
  std::vector<int64_t> counts;
  for (const int64_t count : rows) counts.push_back(count * row_elements);
  const int64_t begin = std::accumulate(rows.begin(), rows.begin() + rank_, int64_t{0});
  const TensorView mine = x.Slice(0, begin, begin + rows[rank_]);
  return communicator_->StartAllGather(mine, x, counts, {.what = what}).Follow();
}

}  // namespace tessera
