#include <cstdint>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Products in fp32 with the bits of processors in EXACT numerics (cpu/gemm/gemm.h): an element is a
// chain of fused multiply-adds over ascending indices. A block computes a tile of c, a thread 4 x 4
// elements of it; the operands pass through shared memory in slices along the chain.
namespace {

constexpr int kTile = 64, kSlice = 16, kPerThread = 4;
constexpr int kRowThreads = kTile / kPerThread, kThreads = kRowThreads * kRowThreads;
constexpr int kStride = kTile + 4;  // of a slice's rows, for fewer conflicts of banks

// The rows of a, or the columns of b.
struct Chains {
  const float* data;
  int64_t count, depth;
  int64_t stride, depth_stride;

  // Elements beyond the end are zeros.
  TESSERA_DEVICE void Load(int64_t first, int64_t begin, const simt::SharedArray<float>& to) const {
    for (int e = simt::ThreadIndex(); e < kTile * kSlice; e += kThreads) {
      // Adjacent threads read adjacent elements.
      const bool dense = depth_stride == 1;
      const int i = dense ? e / kSlice : e % kTile, k = dense ? e % kSlice : e / kTile;
      const bool inside = first + i < count && begin + k < depth;
      to.Set(k * kStride + i,
             inside ? data[(first + i) * stride + (begin + k) * depth_stride] : 0.0f);
    }
  }
};

TESSERA_KERNEL void MultiplyChains(Chains a, Chains b, Rows<float> c, bool accumulate,
                                   const float* bias) {
  simt::SharedMemory memory;
  const simt::SharedArray<float> a_slice = memory.Take<float>(kSlice * kStride);
  const simt::SharedArray<float> b_slice = memory.Take<float>(kSlice * kStride);
  const int row = simt::ThreadIndex() / kRowThreads * kPerThread;
  const int column = simt::ThreadIndex() % kRowThreads * kPerThread;
  const int64_t first_row = simt::BlockX() * kTile, first_column = simt::BlockY() * kTile;
  float sums[kPerThread][kPerThread] = {};
  const auto each_element = [&](const auto& body) {
    for (int i = 0; i < kPerThread; ++i) {
      for (int j = 0; j < kPerThread; ++j) {
        const int64_t r = first_row + row + i, s = first_column + column + j;
        if (r < c.rows && s < c.columns) body(sums[i][j], c.data + r * c.stride + s, s);
      }
    }
  };
  if (accumulate) each_element([](float& sum, float* at, int64_t) { sum = *at; });
  for (int64_t begin = 0; begin < a.depth; begin += kSlice) {
    a.Load(first_row, begin, a_slice);
    b.Load(first_column, begin, b_slice);
    simt::SyncThreads();
    const int depth = a.depth - begin < kSlice ? static_cast<int>(a.depth - begin) : kSlice;
    for (int k = 0; k < depth; ++k) {
      float left[kPerThread], right[kPerThread];
      a_slice.GetPack(k * kStride + row, left);
      b_slice.GetPack(k * kStride + column, right);
      for (int i = 0; i < kPerThread; ++i) {
        for (int j = 0; j < kPerThread; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
      }
    }
    simt::SyncThreads();
  }
  each_element(
      [bias](float& sum, float* at, int64_t s) { *at = bias == nullptr ? sum : sum + bias[s]; });
}

}  // namespace

void DeviceKernels::RunInChains(const ops::MatMul& op) {
  const Operation here("MatMul", op.a, op.b, op.c);
  const Rows<float> c = AsRows<float>(op.c);
  const int64_t depth = op.a.dim(1);
  const Chains a = {op.a.as<float>(), c.rows, depth, op.a.stride(0), op.a.stride(1)};
  const Chains b = {op.b.as<float>(), c.columns, depth, op.b.stride(1), op.b.stride(0)};
  simt::Launch<MultiplyChains>({simt::BlocksOf(c.rows, kTile), simt::BlocksOf(c.columns, kTile)},
                               kThreads, 2 * kSlice * kStride * sizeof(float), stream(), a, b, c,
                               op.accumulate, op.bias.empty() ? nullptr : op.bias.as<float>());
}

}  // namespace tessera::cuda
