#include "compute/kernels/cpu/cpu_backend.h"

#include "absl/strings/str_cat.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/gemm/gemm.h"
#include "compute/kernels/cpu/gemm_cache.h"

namespace tessera {

std::unique_ptr<Backend> MakeCpuBackend(int threads, bool exact) {
  return std::make_unique<CpuBackend>(threads, exact ? GemmKind::kExact : GemmKind::kFast);
}

namespace {

NumericsFingerprint Compute(bool exact, bool bf16) {
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1, exact);
  const FixedResults results = ComputeFixedResults(*backend, bf16);
  return {.instruction_set = kAnyInstructionSet,
          .library = exact ? absl::StrCat("contract ", kGemmContract) : GemmLibrary(),
          .products_hash = results.products_hash,
          .loops_hash = results.loops_hash};
}

}  // namespace

const NumericsFingerprint& CpuNumericsFingerprint() {
  static const auto& numerics = *new NumericsFingerprint(Compute(/*exact=*/false, /*bf16=*/true));
  return numerics;
}

const NumericsFingerprint& ExactNumericsFingerprint(bool bf16) {
  if (bf16) {
    static const auto& of_both = *new NumericsFingerprint(Compute(/*exact=*/true, /*bf16=*/true));
    return of_both;
  }
  static const auto& of_fp32 = *new NumericsFingerprint(Compute(/*exact=*/true, /*bf16=*/false));
  return of_fp32;
}

}  // namespace tessera
