#ifndef TESSERA_TRAINER_PARALLEL_BUCKET_BUFFERS_H_
#define TESSERA_TRAINER_PARALLEL_BUCKET_BUFFERS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// Memory for buckets under way, made on demand and reused, in two sizes: buckets within the bucket
// size, and those of one parameter that is larger.
class BucketBuffers {
 public:
  struct Loan {
    int buffer = -1;  // none
    TensorView memory;
    bool none() const { return buffer < 0; }
  };

  // Every stretch asked for is at most `large` long. `limits`: of buffers per size that Borrow()
  // makes.
  BucketBuffers(DType dtype, Device device, int64_t small_elements, int64_t large_elements,
                int small_limit, int large_limit)
      : dtype_(dtype),
        device_(device),
        sizes_{Size{small_elements, small_limit, {}}, Size{large_elements, large_limit, {}}} {}

  // None where all of that size are lent and the limit is reached.
  Loan Borrow(int64_t elements);
  // Beyond the limit if need be.
  Loan BorrowAnyway(int64_t elements);
  // Empties the loan.
  void Return(Loan& loan);

  // Of all that the limits allow.
  int64_t most_elements() const {
    return sizes_[0].elements * sizes_[0].limit + sizes_[1].elements * sizes_[1].limit;
  }

 private:
  struct Buffer {
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
  std::vector<Buffer> buffers_;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_PARALLEL_BUCKET_BUFFERS_H_
