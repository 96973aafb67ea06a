#ifndef TESSERA_COMPUTE_PARALLEL_GRADIENT_BUCKETS_H_
#define TESSERA_COMPUTE_PARALLEL_GRADIENT_BUCKETS_H_

// How the gradients of a pipeline stage are divided. The gradient space has all of them, one behind
// the other. It is cut into buckets, each of which is reduced over the data-parallel ranks as soon
// as it is complete. A bucket is cut into pieces, one for each of these ranks: with ZeRO, the rank
// owns it.

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "layout/dtype.h"
#include "tensor/flat_parameter.h"
#include "tensor/tensor.h"

namespace tessera {

// Notifications of a backward pass about the parameters' gradients, so that their memory can be
// allocated late, and their reduction over data-parallel ranks can start early.
//
// Ranges refer to the gradient space: the flat space of the parameters, followed by the second
// gradients of tied ones. A backward pass visits the parameters in reverse order and announces each
// range once; a tied table that a stage uses at both ends is ready last.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  // Called before gradients in [begin, end) are written: until Ready(), their views must point to
  // memory.
  virtual absl::Status Prepare(int64_t begin, int64_t end) = 0;
  // Called when gradients in [begin, end) have their final values for this micro-batch.
  virtual absl::Status Ready(int64_t begin, int64_t end) = 0;
};

// Elements of a block. Buckets and pieces are cut at multiples of it, and the gradients' norm
// (gradient_norm.h) is taken over blocks.
inline constexpr int64_t kGradientBlock = kFlatAlignment;

struct GradientLayout {
  std::vector<FlatParameter> parameters;  // in flat order
  int64_t value_elements = 0;             // of the flat space of values
  int64_t gradient_elements = 0;          // including the second gradients, behind the values
};

struct GradientBucket {
  int64_t begin = 0;  // in the gradient space; includes gaps behind parameters
  int64_t end = 0;
  std::vector<int> parameters;          // indices in the layout
  bool second = false;                  // for the second gradient of parameters[0]
  std::vector<int64_t> piece_elements;  // by data rank; some may be 0

  int64_t elements() const { return end - begin; }
  // Returns the beginning of a rank's piece.
  int64_t PieceBegin(int rank) const;
  int64_t PieceEnd(int rank) const { return PieceBegin(rank) + piece_elements[rank]; }
};

// Returns buckets that cover the gradient space, from the end of the values to their start, the
// order in which a backward pass completes them (second gradients first). Each contains as many
// neighbouring parameters as fit into `bucket_elements`, but at least one. Pieces: multiples of
// kGradientBlock (except at the end of the space), as equal as that permits. Preconditions
// (CHECKed): parameters are disjoint, in order, at multiples of kGradientBlock.
std::vector<GradientBucket> CutBuckets(const GradientLayout& layout, int64_t bucket_elements,
                                       int data_ranks);

// Memory for buckets in flight, allocated on demand and reused, in two sizes: for buckets within
// the bucket size, and for those of a single larger parameter.
class BucketBuffers {
 public:
  struct Loan {
    int buffer = -1;  // none
    TensorView memory;
    bool none() const { return buffer < 0; }
  };

  // Every request is for at most `large_elements`. `limits` are the numbers of buffers per size
  // that Borrow() allocates.
  BucketBuffers(DType dtype, Device device, int64_t small_elements, int64_t large_elements,
                int small_limit, int large_limit)
      : dtype_(dtype),
        device_(device),
        sizes_{Size{small_elements, small_limit, {}}, Size{large_elements, large_limit, {}}} {}

  // Lends a buffer. Returns no loan if all buffers of that size are lent and the limit is reached.
  Loan Borrow(int64_t elements);
  // Lends a buffer. Exceeds the limit if necessary.
  Loan BorrowAnyway(int64_t elements);
  // Takes a buffer back, and empties the loan.
  void Return(Loan& loan);

  // Returns the elements of all buffers within the limits.
  int64_t max_elements() const {
    return sizes_[0].elements * sizes_[0].limit + sizes_[1].elements * sizes_[1].limit;
  }

 private:
  struct PooledBuffer {
    Tensor tensor;
    int size;
  };
  struct Size {
    int64_t elements;
    int limit;
    std::vector<int> free;
    int made = 0;
  };
  Loan Take(int size, int64_t elements);
  int SizeOf(int64_t elements) const { return elements <= sizes_[0].elements ? 0 : 1; }

  const DType dtype_;
  const Device device_;
  std::array<Size, 2> sizes_;
  std::vector<PooledBuffer> buffers_;
};

// The sum over the n contributions of a step, which arrive in order, for one range of gradients:
// plain, or elementwise the binary tree T(0, n) of tree_sum.h. A tree of open subtrees is a binary
// counter: each term holds a power of two of contributions, and equal neighbours are added
// immediately.
//
// `Place(i)` returns where contribution i has to be stored: the result for the first, a separate
// buffer where it opens a subtree. Empty where it is added as soon as it is complete, from any
// memory.
class BucketSum {
 public:
  // `result`: receives the sum; contiguous, may have no elements. Buffers are allocated when they
  // are first needed, in the current memory category.
  BucketSum(TensorView result, Device device, int64_t contributions, bool tree)
      : result_(std::move(result)), device_(device), contributions_(contributions), tree_(tree) {}

  // Returns where contribution i has to be stored, see above. Between Place(i) and Add(i), neither
  // may be called for another contribution.
  TensorView Place(int64_t i);
  // Adds contribution i. `from` is Place(i), or any memory of the result's shape, which may be
  // reused after the call.
  void Add(Backend& backend, int64_t i, const TensorView& from);
  // Forgets the contributions. Must be called before the next step.
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

// Returns the number of buffers that a BucketSum allocates besides the result.
int64_t MaxOpenTerms(int64_t contributions, bool tree);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_GRADIENT_BUCKETS_H_
