#ifndef TESSERA_COMPUTE_PARALLEL_BUCKET_BUFFERS_H_
#define TESSERA_COMPUTE_PARALLEL_BUCKET_BUFFERS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {

// Memory for buckets in flight, allocated on demand and reused, in two sizes: for buckets within
// the bucket size, and for those of a single larger parameter.
class BucketBuffers {
 public:
  struct Loan {
    int buffer = -1;  // none
    TensorView memory;
    bool none() const { return buffer < 0; }
  };

  // Every request is for at most `large` elements. `limits`: the number of buffers per size that
  // Borrow() allocates.
  BucketBuffers(DType dtype, Device device, int64_t small_elements, int64_t large_elements,
                int small_limit, int large_limit)
      : dtype_(dtype),
        device_(device),
        sizes_{Size{small_elements, small_limit, {}}, Size{large_elements, large_limit, {}}} {}

  // No loan if all buffers of that size are lent and the limit is reached.
  Loan Borrow(int64_t elements);
  // Exceeds the limit if necessary.
  Loan BorrowAnyway(int64_t elements);
  // Empties the loan.
  void Return(Loan& loan);

  // Elements of all buffers within the limits.
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

}  // namespace tessera

#endif  // TESSERA_COMPUTE_PARALLEL_BUCKET_BUFFERS_H_
