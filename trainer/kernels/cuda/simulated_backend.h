#ifndef TESSERA_TRAINER_KERNELS_CUDA_SIMULATED_BACKEND_H_
#define TESSERA_TRAINER_KERNELS_CUDA_SIMULATED_BACKEND_H_

#include <memory>

#include "trainer/kernels/backend.h"
#include "trainer/kernels/cuda/simt_host.h"

namespace tessera::cuda {

// The kernels of this folder on the simulated device, over host memory. Matrix products, which
// have no kernels here, are the reference's. Synchronize() reports errors of kernels.
std::unique_ptr<Backend> MakeSimulatedBackend(const simt::SimulatorOptions& options = {});

}  // namespace tessera::cuda

#endif  // TESSERA_TRAINER_KERNELS_CUDA_SIMULATED_BACKEND_H_
