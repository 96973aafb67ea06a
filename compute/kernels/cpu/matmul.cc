// The backend's matrix products: checks, and the choice between packed and tiled ones.

#include <glog/logging.h>

#include <span>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/matmul_packed.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "compute/kernels/cpu/matmul_tiled.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera {
namespace {

void CheckOperands(const TensorView& a, const TensorView& b, const TensorView& c) {
  CHECK(a.rank() == 2 && b.rank() == 2 && c.rank() == 2);
  CHECK(a.dim(0) == c.dim(0) && b.dim(0) == a.dim(1) && b.dim(1) == c.dim(1))
      << ToString(a.shape()) << " x " << ToString(b.shape()) << " = " << ToString(c.shape());
  CHECK(a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == DType::kF32));
  CHECK(c.dim(1) == 1 || c.stride(1) == 1) << "c is dense in its columns";
}

bool SameLayout(const TensorView& x, const TensorView& y) {
  const MatrixLayout a = LayoutOf(x), b = LayoutOf(y);
  return a.leading == b.leading && a.transposed == b.transposed;
}

}  // namespace

void CpuBackend::Multiply(const Product& product) {
  if (product.m() == 0 || product.n() == 0) return;
  CHECK_GT(product.k(), 0);
  if (PackedMatMul(product, pool_, workspace_, gemms_)) return;
  TiledMatMul(product, pool_, workspace_, gemms_);
}

void CpuBackend::MatMul(TensorView a, TensorView b, TensorView c, bool accumulate,
                        TensorView bias) {
  CheckOperands(a, b, c);
  if (!bias.empty()) {
    CHECK(bias.elements() == c.dim(1) && bias.contiguous() && bias.dtype() == a.dtype());
  }
  const MatMulOperands term = {a, b};
  Multiply({.terms = {&term, 1}, .c = c, .accumulate = accumulate, .bias = bias});
}

void CpuBackend::MatMulTree(std::span<const MatMulOperands> products, TensorView c) {
  CHECK(!products.empty());
  CHECK(c.dtype() == DType::kF32);
  for (const MatMulOperands& product : products) {
    CheckOperands(product.a, product.b, c);
    CHECK(product.a.dtype() == products[0].a.dtype());
    CHECK(SameLayout(product.a, products[0].a) && SameLayout(product.b, products[0].b));
  }
  Multiply({.terms = products, .c = c});
}

}  // namespace tessera
