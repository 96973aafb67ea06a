#include "compute/kernels/cpu/cpu_backend.h"

#include <memory>

#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"

namespace tessera {

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace tessera
