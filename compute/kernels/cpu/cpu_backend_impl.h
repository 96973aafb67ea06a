#ifndef TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_IMPL_H_
#define TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_IMPL_H_

// The class behind MakeCpuBackend. Each operation's methods are defined in the file named after it.

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/cpu/matmul_product.h"
#include "compute/kernels/cpu/thread_pool.h"
#include "compute/kernels/cpu/workspace.h"
#include "tensor/tensor.h"

namespace tessera {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, GemmKind products)
      : pool_(threads), workspace_(threads), gemms_(threads, products) {}

  Device device() const override { return {DeviceType::kCpu, 0}; }

 protected:
  using Backend::Run;
  TESSERA_PRIMITIVE_OPERATIONS(TESSERA_DECLARE_RUN)
  void Run(const ops::AddLayerNormForward& op) override;
  void Run(const ops::AddRmsNormForward& op) override;

 private:
  void Multiply(const Product& product);
  double BlockedSum(TensorView x, bool squares);

  ThreadPool pool_;
  Workspace workspace_;
  GemmCache gemms_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_IMPL_H_
