#ifndef TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PRODUCT_H_
#define TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PRODUCT_H_

#include <cstdint>
#include <span>

#include "base/checked_math.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/workspace.h"
#include "tensor/tensor.h"

namespace tessera {

// A matrix product, or a sum of several, that is cut into tiles of its result for the threads:
// c[m,n] = a[m,k] b[k,n] (+ bias[n]) (+ c). With several terms, c (fp32) is the sum of their
// products in a tree. It is cut as one of them is, so every term has the bits that it has alone.
//
// The cut of our own products changes no bit. That of oneDNN's does, so it is a pure function of
// shapes, dtypes and layouts, never of the thread count.
struct Product {
  std::span<const MatMulOperands> terms;  // of one layout
  TensorView c;
  bool accumulate = false;  // one term only
  TensorView bias;          // or empty; one term only

  const TensorView& a() const { return terms[0].a; }
  const TensorView& b() const { return terms[0].b; }
  int64_t count() const { return static_cast<int64_t>(terms.size()); }
  int64_t m() const { return c.dim(0); }
  int64_t n() const { return c.dim(1); }
  int64_t k() const { return a().dim(1); }
};

// The layout of a matrix: row-major, or column-major if `transposed`. `leading` is the distance of
// its rows (columns).
struct MatrixLayout {
  int64_t leading = 0;
  bool transposed = false;
};
MatrixLayout LayoutOf(const TensorView& x);

struct TileShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// Returns the extent of near-equal parts of at most `most`; each but the last is a multiple of
// `quantum`.
inline int64_t PartExtent(int64_t extent, int64_t most, int64_t quantum) {
  const int64_t parts = CeilDivide(extent, most);
  return CeilDivide(CeilDivide(extent, parts), quantum) * quantum;
}

// Returns the share of time in which the threads have a tile of c[m,n]. 0 threads: a weighted mean
// over usual thread counts.
double TileBalance(int64_t m, int64_t n, TileShape tile, int threads = 0);

// Computes the product in tiles of c, for any shape and dtype.
void TiledMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms);

// Computes a bf16 product on processors whose oneDNN kernels want packed operands. Returns false,
// and does nothing, if its shape does not suit them.
bool PackedMatMul(const Product& product, ThreadPool& pool, Workspace& workspace, GemmCache& gemms);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_MATMUL_PRODUCT_H_
