#ifndef TESSERA_COMPUTE_KERNELS_CUDA_OPERANDS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_OPERANDS_H_

// Operands as kernels get them, by value.

#include <glog/logging.h>

#include <cstdint>

#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

// Calls body(T{}) with the C++ type of a compute dtype.
template <typename Body>
void WithType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BFloat16{});
    default:
      LOG(FATAL) << "the device computes in float32 and bfloat16, not " << DTypeName(dtype);
  }
}

// A matrix [rows, columns], dense in its columns. `stride` is the distance of rows in elements.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

// Treats all dims but the last as rows: a strided matrix, or a contiguous tensor of any rank.
template <typename T>
Rows<T> AsRows(const TensorView& x) {
  CHECK_GE(x.rank(), 1);
  const int64_t columns = x.dim(x.rank() - 1);
  if (x.rank() == 2) {
    CHECK(columns <= 1 || x.stride(1) == 1) << "not dense in the last dim: " << ToString(x.shape());
    return {x.as<T>(), x.dim(0), columns, x.stride(0)};
  }
  CHECK(x.contiguous()) << "strided, and not a matrix: " << ToString(x.shape());
  return {x.as<T>(), columns == 0 ? 0 : x.elements() / columns, columns, columns};
}

// Elements that a thread loads at once where all operands allow it.
inline constexpr int kPackElements = 4;

// Whether every row of the operand can be read in packs.
template <typename T>
bool AllowsPacks(const Rows<T>& x) {
  constexpr uintptr_t kPackBytes = kPackElements * sizeof(T);
  return x.columns % kPackElements == 0 && x.stride % kPackElements == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % kPackBytes == 0;
}

template <typename T>
bool AllowsPacks(const T* vector) {
  return reinterpret_cast<uintptr_t>(vector) % (kPackElements * sizeof(T)) == 0;
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_OPERANDS_H_
