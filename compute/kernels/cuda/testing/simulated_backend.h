#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_BACKEND_H_

#include <memory>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/testing/simt_host.h"

namespace tessera::cuda {

// DeviceBackend on a simulated device of its own, over host memory: any host tensor is an operand.
// Every operation runs before its call returns. Matrix products are a fake cuBLASLt's, unless
// they are `exact_products` (device_backend.h).
std::unique_ptr<Backend> MakeSimulatedBackend(const simt::SimulatorOptions& options = {},
                                              bool exact_products = false);

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_BACKEND_H_
