#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_CACHE_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_CACHE_H_

#include <map>
#include <memory>
#include <string>

#include "compute/kernels/cpu/gemm_interface.h"
#include "layout/dtype.h"

namespace tessera {

// The origin of products, and their bits.
enum class GemmKind {
  kExact,  // ours, with the contract of gemm/gemm.h
  kFast,   // oneDNN's with AVX-512, except bf16 without instructions for it; otherwise ours
  kOwn,    // ours, in the fastest order
};

// Creates each product once.
//
// Threads: Get() must be called by the calling thread, outside of loops. Its result lives as long
// as the cache.
class GemmCache {
 public:
  explicit GemmCache(int threads, GemmKind kind = GemmKind::kFast);
  ~GemmCache();

  const Gemm& Get(const GemmShape& shape);

  // Returns whether oneDNN computes products of this dtype.
  bool uses_dnnl(DType dtype) const { return dtype == DType::kBF16 ? dnnl_bf16_ : dnnl_fp32_; }
  // Returns whether oneDNN's bf16 products are used, and fast with b packed.
  bool has_packed() const { return has_packed_; }

 private:
  struct Threads;

  std::unique_ptr<Threads> threads_;
  const bool exact_;
  const bool dnnl_fp32_, dnnl_bf16_;
  const bool has_packed_;
  std::map<GemmShape, std::unique_ptr<Gemm>> gemms_;
};

// Returns the library of fp32 products that need not be exact: "oneDNN 2.6.3 avx512_core_amx", or
// "own 1", with the version of the contract. Runs with different libraries may have different bits.
std::string GemmLibrary();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_CACHE_H_
