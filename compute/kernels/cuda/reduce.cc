// Sums over a tensor in fp64: one warp a block of a fixed size, then a binary tree over the blocks.

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/norm_rows.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kBlock = 4096;

// The order of a block's sum depends on its length alone: lane i has elements i, i + 32, ...
template <typename T>
TESSERA_KERNEL void SumBlocks(const T* x, int64_t count, int64_t block, bool squares,
                              double* sums) {
  const int64_t index = WarpRow();
  const int64_t begin = index * block;
  if (begin >= count) return;
  const int64_t end = count - begin < block ? count : begin + block;
  double sum = 0;
  for (int64_t i = begin + simt::Lane(); i < end; i += simt::kWarpSize) {
    const double value = static_cast<double>(simt::ToFloat(x[i]));
    sum += squares ? value * value : value;
  }
  sum = simt::WarpSum(sum);
  if (simt::Lane() == 0) sums[index] = sum;
}

}  // namespace

void DeviceKernels::LaunchBlockSums(TensorView x, int64_t block, bool squares,
                                    std::span<double> sums) {
  const int64_t count = x.elements();
  if (sums.empty()) return;
  const int64_t bytes = static_cast<int64_t>(sums.size_bytes());
  double* const on_device = static_cast<double*>(Scratch(bytes));
  if (on_device == nullptr) return;
  WithType(x.dtype(), [&]<typename T>(T) {
    simt::Launch<SumBlocks<T>>(WarpRowGrid(static_cast<int64_t>(sums.size())), kWarpRowThreads, 0,
                               stream(), static_cast<const T*>(x.as<T>()), count, block, squares,
                               on_device);
  });
  CopyToHost(on_device, bytes, sums.data());
}

double DeviceKernels::BlockedSum(TensorView x, bool squares) {
  std::vector<double> sums(static_cast<size_t>(simt::BlocksOf(x.elements(), kBlock)));
  if (sums.empty()) return 0;
  LaunchBlockSums(x, kBlock, squares, sums);
  for (size_t step = 1; step < sums.size(); step *= 2) {
    for (size_t i = 0; i + step < sums.size(); i += 2 * step) sums[i] += sums[i + step];
  }
  return sums[0];
}

void DeviceKernels::Run(const ops::SumOfSquaresByBlock& op) {
  const Operation here("SumOfSquaresByBlock", op.x);
  LaunchBlockSums(op.x, op.block, /*squares=*/true, op.sums);
}

double DeviceKernels::Run(const ops::SumOfSquares& op) {
  const Operation here("SumOfSquares", op.x);
  return BlockedSum(op.x, /*squares=*/true);
}

double DeviceKernels::Run(const ops::Sum& op) {
  const Operation here("Sum", op.x);
  return BlockedSum(op.x, /*squares=*/false);
}

}  // namespace tessera::cuda
