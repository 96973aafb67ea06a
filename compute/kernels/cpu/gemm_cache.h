#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_CACHE_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_CACHE_H_

#include <map>
#include <memory>
#include <string>

#include "compute/kernels/cpu/gemm.h"

namespace tessera {

// Creates each product once. Exact: all of them ours, with the contract of gemm/gemm.h. Otherwise
// whatever is fastest at it on this processor:
//
// - fp32: oneDNN with AVX-512, OpenBLAS's kernels without (gemm_libraries.h).
// - bf16: oneDNN where the processor has bf16 instructions; otherwise the operands are widened,
//   multiplied in fp32 and rounded once (gemm_libraries.h).
//
// Threads: Get() must be called by the calling thread, outside of loops. Its result lives as long
// as the cache.
class GemmCache {
 public:
  explicit GemmCache(int threads, bool exact = false);
  ~GemmCache();

  const Gemm& Get(const GemmShape& shape);

  // Whether products have the bits of the contract, at whatever cost.
  bool exact() const { return exact_; }
  // Whether bf16 products use the processor's bf16 instructions instead of being widened.
  bool has_bf16() const { return has_bf16_; }
  // Whether fp32 products use OpenBLAS's kernels.
  bool has_openblas() const { return has_openblas_; }
  // Whether oneDNN has bf16 kernels for this processor that need b packed.
  bool has_packed() const { return has_packed_; }

 private:
  struct Threads;

  std::unique_ptr<Gemm> Make(const GemmShape& shape);

  std::unique_ptr<Threads> threads_;
  const bool exact_;
  const bool has_bf16_;
  const bool has_packed_;
  const bool has_openblas_;
  std::map<GemmShape, std::unique_ptr<Gemm>> gemms_;
};

// What computes fp32 products that need not be exact: the library, its version and the instruction
// set that it uses here: "oneDNN 2.6.3 avx512_core_amx". Runs in which these differ may have
// different bits.
std::string GemmLibrary();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_CACHE_H_
