#include "compute/kernels/cpu/cpu_backend.h"

#include <memory>
#include <string>

#include "base/cpu_level.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}
namespace {

NumericsFingerprint Compute() {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  const FixedResults results = ComputeFixedResults(*backend);
  return {.instruction_set = std::string(CpuLevelName(EffectiveCpuLevel())),
          .library = GemmLibrary(),
          .products_hash = results.products_hash,
          .loops_hash = results.loops_hash};
}

}  // namespace

const NumericsFingerprint& CpuNumericsFingerprint() {
  static const auto& numerics = *new NumericsFingerprint(Compute());
  return numerics;
}

}  // namespace tessera
