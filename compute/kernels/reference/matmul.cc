#include <glog/logging.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/backend_impl.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/tensor.h"

namespace tessera::reference {
namespace {

Array Multiply(const Array& a, const Array& b) {
  CHECK_EQ(a.dim(1), b.dim(0));
  Array product({a.dim(0), b.dim(1)});
  for (int64_t m = 0; m < a.dim(0); ++m) {
    for (int64_t k = 0; k < a.dim(1); ++k) {
      for (int64_t n = 0; n < b.dim(1); ++n) product(m, n) += a(m, k) * b(k, n);
    }
  }
  return product;
}

// T(0, n) of the products, every product and every sum rounded to `dtype`.
Array TreeSum(std::span<const MatMulOperands> products, DType dtype) {
  if (products.size() == 1) {
    Array product = Multiply(Array(products[0].a), Array(products[0].b));
    for (double& value : product.values()) value = RoundTo(dtype, value);
    return product;
  }
  const size_t middle = std::bit_floor(products.size() - 1);
  Array sum = TreeSum(products.first(middle), dtype);
  const Array right = TreeSum(products.subspan(middle), dtype);
  CHECK(sum.shape() == right.shape());
  for (size_t i = 0; i < sum.values().size(); ++i) {
    sum.values()[i] = RoundTo(dtype, sum.values()[i] + right.values()[i]);
  }
  return sum;
}

}  // namespace

// c[m,n] = sum_k a[m,k] b[k,n] (+ bias[n]) (+ c[m,n])
void ReferenceBackend::MatMul(TensorView a, TensorView b, TensorView c, bool accumulate,
                              TensorView bias) {
  const Array left(a), right(b), addend(bias);
  if (!bias.empty()) CHECK(bias.shape() == Shape{right.dim(1)}) << ToString(bias.shape());
  Array product = Multiply(left, right);
  for (int64_t m = 0; m < left.dim(0); ++m) {
    for (int64_t n = 0; !addend.empty() && n < right.dim(1); ++n) product(m, n) += addend(n);
  }
  product.StoreTo(c, accumulate);
}

// c[m,n] = T(0, n) of sum_k a_i[m,k] b_i[k,n]
void ReferenceBackend::MatMulTree(std::span<const MatMulOperands> products, TensorView c) {
  CHECK(!products.empty());
  TreeSum(products, c.dtype()).StoreTo(c);
}

// out[r,c] = x[r,c] + bias[c]
void ReferenceBackend::AddBias(TensorView x, TensorView bias, TensorView out) {
  Array sum(x);
  const Array addend(bias);
  if (!bias.empty()) CHECK(bias.shape() == Shape{sum.dim(1)}) << ToString(bias.shape());
  for (int64_t r = 0; r < sum.dim(0); ++r) {
    for (int64_t c = 0; !addend.empty() && c < sum.dim(1); ++c) sum(r, c) += addend(c);
  }
  sum.StoreTo(out);
}

}  // namespace tessera::reference
