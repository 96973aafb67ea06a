#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_BACKEND_H_

#include <memory>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/products.h"
#include "compute/kernels/cuda/testing/simt_host.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera::cuda {

// Returns a device backend on a simulated device of its own, over host memory: any host tensor may
// be an operand. Every operation runs before its call returns. A fake cuBLASLt computes matrix
// products, except exact ones (device_backend.h).
std::unique_ptr<Backend> MakeSimulatedBackend(const simt::SimulatorOptions& options = {},
                                              DeviceNumerics numerics = DeviceNumerics::kFast,
                                              const ProductChoices& choices = {});

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_BACKEND_H_
