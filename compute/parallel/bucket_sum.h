#ifndef TESSERA_COMPUTE_PARALLEL_BUCKET_SUM_H_
#define TESSERA_COMPUTE_PARALLEL_BUCKET_SUM_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "compute/kernels/backend.h"
#include "compute/tensor/tensor.h"

namespace tessera {

// The sum over the n contributions of a step, which arrive in order, for one range of gradients:
// plain, or elementwise the binary tree T(0, n) of tree_sum.h. A tree of open subtrees is a binary
// counter: each term holds a power of two of contributions, and equal neighbours are added
// immediately.
//
// `Place(i)` returns where contribution i has to be stored: the result for the first, a separate
// buffer where it opens a subtree, and nothing (empty) where it is added as soon as it is complete,
// from any memory.
class BucketSum {
 public:
  // `result`: receives the sum; contiguous, may have no elements. Buffers are allocated when they
  // are first needed, in the current memory category.
  BucketSum(TensorView result, Device device, int64_t contributions, bool tree)
      : result_(std::move(result)), device_(device), contributions_(contributions), tree_(tree) {}

  // Between Place(i) and Add(i), neither may be called for another contribution.
  TensorView Place(int64_t i);
  // `from`: Place(i), or any memory of the result's shape, which may be reused after the call.
  void Add(Backend& backend, int64_t i, const TensorView& from);
  // Must be called before the next step.
  void Reset();

  const TensorView& result() const { return result_; }

 private:
  struct Term {
    int64_t contributions;
    TensorView sum;
    int buffer;  // index in buffers_; negative: the result
  };
  void MergeLastTwo(Backend& backend);

  TensorView result_;
  Device device_;
  int64_t contributions_;
  bool tree_;
  std::vector<Term> terms_;
  std::vector<Tensor> buffers_;
  std::vector<int> free_;
};

// The number of buffers that a BucketSum allocates besides the result.
int64_t MaxOpenTerms(int64_t contributions, bool tree);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_BUCKET_SUM_H_
