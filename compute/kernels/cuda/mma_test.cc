// Products of one warp, in every layout of their operands, against plain loops.

#include "compute/kernels/cuda/mma.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/simt_host.h"
#include "compute/tensor/bfloat16.h"

namespace tessera::cuda {
namespace {

constexpr int kInner = 48;
constexpr int kTiles = 3;
constexpr int kColumns = kTiles * kTileColumns;

// c[16, kColumns] = c + a[16, kInner] b[kInner, kColumns], by one warp. Whether a matrix has its
// inner dim last in shared memory is a choice.
template <typename T>
TESSERA_KERNEL void Multiply(const float* a, bool a_inner_last, const float* b, bool b_inner_last,
                             float* c) {
  simt::SharedMemory memory;
  const auto load = [&](const float* from, int rows, bool inner_last) {
    const int stride = inner_last ? kInner + 8 : 1, inner_stride = inner_last ? 1 : rows + 1;
    const simt::SharedArray<T> to = memory.Take<T>((kInner + 8) * (rows + 1));
    for (int i = simt::ThreadIndex(); i < rows * kInner; i += simt::kWarpSize) {
      to.Set(i / kInner * stride + i % kInner * inner_stride, simt::FromFloat<T>(from[i]));
    }
    return SharedMatrix<T>{to, stride, inner_stride};
  };
  const SharedMatrix<T> left = load(a, kTileRows, a_inner_last);
  const SharedMatrix<T> right = load(b, kColumns, b_inner_last);
  simt::SyncWarp();
  float sums[kTiles][4];
  for (int n = 0; n < kTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      sums[n][i] = c[TileRow(i) * kColumns + n * kTileColumns + TileColumn(i)];
    }
  }
  WarpMultiply(left, right, kInner, sums);
  for (int n = 0; n < kTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      c[TileRow(i) * kColumns + n * kTileColumns + TileColumn(i)] = sums[n][i];
    }
  }
}

// Small integers, whose products and sums are exact in both types.
template <typename T>
void ExpectExactProducts() {
  std::vector<float> a(kTileRows * kInner), b(kColumns * kInner), start(kTileRows * kColumns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7 % 23) - 11;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 5 % 17) - 8;
  for (size_t i = 0; i < start.size(); ++i) start[i] = static_cast<float>(i);
  std::vector<float> expected = start;
  for (int row = 0; row < kTileRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      for (int k = 0; k < kInner; ++k) {
        expected[row * kColumns + column] += a[row * kInner + k] * b[column * kInner + k];
      }
    }
  }
  for (int layout = 0; layout < 4; ++layout) {
    std::vector<float> c = start;
    simt::Launch<Multiply<T>>({1}, simt::kWarpSize, 64 * 1024, nullptr, a.data(), layout % 2 == 0,
                              b.data(), layout / 2 == 0, c.data());
    EXPECT_EQ(simt::TakeLaunchError(), "");
    EXPECT_EQ(c, expected) << "layout " << layout;
  }
}

TEST(MmaTest, BFloat16) { ExpectExactProducts<BFloat16>(); }

TEST(MmaTest, Float) { ExpectExactProducts<float>(); }

}  // namespace
}  // namespace tessera::cuda
