#include "compute/kernels/cpu/cpu_backend.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/gemm/gemm.h"
#include "compute/kernels/cpu/gemm_cache.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

std::unique_ptr<Backend> MakeCpuBackend(int threads, bool exact) {
  return std::make_unique<CpuBackend>(threads, exact ? GemmKind::kExact : GemmKind::kFast);
}

namespace {

NumericsFingerprint Compute(bool exact) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1, exact);
  const FixedResults results = ComputeFixedResults(*backend);
  return {.instruction_set = kAnyInstructionSet,
          .library = exact ? absl::StrCat("contract ", kGemmContract) : GemmLibrary(),
          .products_hash = results.products_hash,
          .loops_hash = results.loops_hash};
}

}  // namespace

const NumericsFingerprint& CpuNumericsFingerprint(bool exact) {
  if (exact) {
    static const auto& of_contract = *new NumericsFingerprint(Compute(true));
    return of_contract;
  }
  static const auto& numerics = *new NumericsFingerprint(Compute(false));
  return numerics;
}

}  // namespace tessera
