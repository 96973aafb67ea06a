#ifndef TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_PRODUCTS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_PRODUCTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "compute/kernels/cuda/cublaslt_api.h"
#include "compute/kernels/cuda/products.h"
#include "tensor/device.h"

namespace tessera::cuda {

struct CublasLtOptions {
  // Memory for algorithms that add parts of the inner dim; NVIDIA's advice for H100.
  int64_t workspace_bytes = int64_t{32} << 20;
  ProductChoices choices = {};
};

// Returns products by cuBLASLt on `compute`, which must outlive them. The algorithm for shapes,
// strides and dtypes is chosen at the first product of its kind: the first of the library's
// proposals whose order of additions is fixed, or another one by `choices`. It never depends on
// addresses or time, so that one version of the library gives the same bits on one type of GPU.
// Each object has a workspace of its own, because products that share one from several streams
// change each other's algorithms.
absl::StatusOr<std::unique_ptr<Products>> MakeCublasLtProducts(std::shared_ptr<CublasLtApi> api,
                                                               Stream& compute,
                                                               const CublasLtOptions& options = {});

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_CUBLASLT_PRODUCTS_H_
