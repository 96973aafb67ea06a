#ifndef TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_

// What every operation uses: operands as kernels get them, by value; a kernel over the elements of
// a matrix; the name of an operation for errors of its launches.

#include <glog/logging.h>

#include <array>
#include <cstdint>
#include <string>

#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/simt_common.h"
#include "compute/tensor/bfloat16.h"
#include "compute/tensor/tensor.h"
#include "layout/dtype.h"

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
    CHECK(columns <= 1 || x.stride(1) == 1)
        << "not dense in the last dim: " << ShapeToString(x.shape());
    return {x.as<T>(), x.dim(0), columns, x.stride(0)};
  }
  CHECK(x.contiguous()) << "strided, and not a matrix: " << ShapeToString(x.shape());
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

inline constexpr int kElementwiseThreads = 256;

// One thread per kCount adjacent elements of a row.
template <int kCount, typename Body>
TESSERA_KERNEL void ForEach(Body body, int64_t rows, int64_t packs_per_row) {
  const int64_t i = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (i >= rows * packs_per_row) return;
  const int64_t row = i / packs_per_row;
  body.template Run<kCount>(row, (i - row * packs_per_row) * kCount);
}

// Calls body.Run<kCount>(row, column) for every run of kCount columns of a matrix, with kCount =
// kPackElements when `packs`, or else 1. A result must not depend on kCount.
template <typename Body>
void LaunchForEach(simt::Stream stream, int64_t rows, int64_t columns, bool packs, Body body) {
  const int64_t packs_per_row = packs ? columns / kPackElements : columns;
  const simt::Grid grid = {simt::BlocksOf(rows * packs_per_row, kElementwiseThreads)};
  if (packs) {
    simt::Launch<ForEach<kPackElements, Body>>(grid, kElementwiseThreads, 0, stream, body, rows,
                                               packs_per_row);
  } else {
    simt::Launch<ForEach<1, Body>>(grid, kElementwiseThreads, 0, stream, body, rows, packs_per_row);
  }
}

// An operation of Backend, named with the shapes of its first operands by errors of the launches
// that follow in the same scope. The operands must outlive it.
class Operation final : private simt::LaunchScope {
 public:
  template <typename... Views>
  explicit Operation(const char* name, const Views&... operands)
      : name_(name), operands_{&operands...} {
    static_assert(sizeof...(operands) <= kMaxOperands);
  }

 private:
  static constexpr int kMaxOperands = 4;

  std::string Describe() const override {
    std::string text = name_;
    const char* before = " of ";
    for (const TensorView* operand : operands_) {
      if (operand == nullptr) break;
      text += before + ShapeToString(operand->shape());
      before = ", ";
    }
    return text;
  }

  const char* const name_;
  const std::array<const TensorView*, kMaxOperands> operands_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_OPERATION_H_
