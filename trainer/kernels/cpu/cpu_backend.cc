#include "trainer/kernels/cpu/cpu_backend.h"

#include <memory>

#include "trainer/kernels/backend.h"
#include "trainer/kernels/cpu/cpu_backend_impl.h"

namespace tessera {

bool CpuHasBf16Products() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace tessera
