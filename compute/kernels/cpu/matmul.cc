// The backend's matrix products: the choice between packed and tiled ones.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "tensor/tensor.h"

namespace tessera {

// The stride of a dim of one element says nothing.
MatrixLayout LayoutOf(const TensorView& x) {
  CHECK_EQ(x.rank(), 2);
  if (x.dim(1) == 1 || x.stride(1) == 1) {
    return {x.dim(0) == 1 ? x.dim(1) : std::max(x.stride(0), x.dim(1)), false};
  }
  CHECK(x.dim(0) == 1 || x.stride(0) == 1)
      << "a matrix needs a dense dim: " << ShapeToString(x.shape());
  return {x.stride(1), true};
}

double TileBalance(int64_t m, int64_t n, TileShape tile, int threads) {
  struct ThreadCount {
    int64_t threads;
    double weight;
  };
  constexpr ThreadCount kCounts[] = {{2, 0.75}, {4, 0.15}, {8, 0.06}, {16, 0.04}};
  const int64_t tiles = CeilDivide(m, tile.rows) * CeilDivide(n, tile.columns);
  const auto balance_of = [&](int64_t count) {
    return static_cast<double>(m * n) /
           static_cast<double>(CeilDivide(tiles, count) * count * tile.rows * tile.columns);
  };
  if (threads > 0) return balance_of(threads);
  double balance = 0;
  for (const ThreadCount& count : kCounts) balance += count.weight * balance_of(count.threads);
  return balance;
}

void CpuBackend::Multiply(const Product& product) {
  if (product.m() == 0 || product.n() == 0) return;
  CHECK_GT(product.k(), 0);
  if (PackedMatMul(product, pool_, workspace_, gemms_)) return;
  TiledMatMul(product, pool_, workspace_, gemms_);
}

void CpuBackend::Run(const ops::MatMul& op) {
  const MatMulOperands term = {op.a, op.b};
  Multiply({.terms = {&term, 1}, .c = op.c, .accumulate = op.accumulate, .bias = op.bias});
}

void CpuBackend::Run(const ops::MatMulTree& op) {
  Multiply({.terms = op.products, .c = op.c, .bias = {}});
}

}  // namespace tessera
