#include <glog/logging.h>

#include <cstdint>

#include "trainer/kernels/reference/array.h"
#include "trainer/kernels/reference/backend_impl.h"
#include "trainer/tensor/tensor.h"

namespace tessera::reference {

// c[m,n] = sum_k a[m,k] b[k,n] (+ bias[n]) (+ c[m,n])
void ReferenceBackend::MatMul(TensorView a, TensorView b, TensorView c, bool accumulate,
                              TensorView bias) {
  const Array left(a), right(b), addend(bias);
  CHECK_EQ(left.dim(1), right.dim(0));
  if (!bias.empty()) CHECK(bias.shape() == Shape{right.dim(1)}) << ToString(bias.shape());
  Array product({left.dim(0), right.dim(1)});
  for (int64_t m = 0; m < left.dim(0); ++m) {
    for (int64_t k = 0; k < left.dim(1); ++k) {
      for (int64_t n = 0; n < right.dim(1); ++n) product(m, n) += left(m, k) * right(k, n);
    }
    for (int64_t n = 0; !addend.empty() && n < right.dim(1); ++n) product(m, n) += addend(n);
  }
  product.StoreTo(c, accumulate);
}

}  // namespace tessera::reference
