#include <glog/logging.h>

#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

void CpuBackend::MatMulTree(std::span<const MatMulOperands> products, TensorView c) {
  CHECK(!products.empty());
  CHECK(c.dtype() == DType::kF32);
  if (products.size() == 1) return MatMul(products[0].a, products[0].b, c, false, {});
  std::vector<Tensor> terms;  // of the tree that are not added yet
  const auto add_last = [&] {
    Add(terms[terms.size() - 2], terms.back(), terms[terms.size() - 2]);
    terms.pop_back();
  };
  for (size_t i = 0; i < products.size(); ++i) {
    terms.emplace_back(DType::kF32, c.shape());
    MatMul(products[i].a, products[i].b, terms.back(), false, {});
    for (int merges = std::countr_one(i); merges > 0; --merges) add_last();
  }
  while (terms.size() > 1) add_last();
  Copy(terms[0], c);
}

}  // namespace tessera
