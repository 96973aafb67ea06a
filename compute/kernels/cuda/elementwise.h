#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ELEMENTWISE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "compute/kernels/cuda/operands.h"
#include "compute/kernels/cuda/simt.h"

namespace tessera::cuda {

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

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ELEMENTWISE_H_
