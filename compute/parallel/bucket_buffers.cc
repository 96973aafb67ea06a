#include "compute/parallel/bucket_buffers.h"

#include "glog/logging.h"

namespace tessera {

BucketBuffers::Loan BucketBuffers::Borrow(int64_t elements) {
  const int size = SizeOf(elements);
  if (sizes_[size].free.empty() && sizes_[size].made >= sizes_[size].limit) return {};
  return Take(size, elements);
}

BucketBuffers::Loan BucketBuffers::BorrowAnyway(int64_t elements) {
  return Take(SizeOf(elements), elements);
}

BucketBuffers::Loan BucketBuffers::Take(int size, int64_t elements) {
  Size& of_size = sizes_[size];
  CHECK_LE(elements, of_size.elements);
  if (of_size.free.empty()) {
    of_size.free.push_back(static_cast<int>(buffers_.size()));
    buffers_.push_back({.tensor = Tensor(dtype_, {of_size.elements}, device_), .size = size});
    ++of_size.made;
  }
  const int buffer = of_size.free.back();
  of_size.free.pop_back();
  return {.buffer = buffer, .memory = buffers_[buffer].tensor.view().Slice(0, 0, elements)};
}

void BucketBuffers::Return(Loan& loan) {
  if (loan.none()) return;
  sizes_[buffers_[loan.buffer].size].free.push_back(loan.buffer);
  loan = {};
}

}  // namespace tessera
