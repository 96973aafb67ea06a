#ifndef TESSERA_COMPUTE_KERNELS_CPU_DNNL_GEMM_H_
#define TESSERA_COMPUTE_KERNELS_CPU_DNNL_GEMM_H_

// Matrix products of oneDNN, for GemmCache, which chooses between them and our own.

#include <memory>
#include <string>
#include <string_view>

#include "compute/kernels/cpu/gemm_interface.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {

// Limits oneDNN to the instruction sets that TESSERA_CPU allows (base/cpu_level.h). A lower limit,
// which a user sets with the variable ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA, is kept.
//
// Must be called before oneDNN is first used, which fixes the instruction sets of the process;
// further calls do nothing. Thread-safe.
void LimitDnnlIsa();

// Returns the newest instruction set that oneDNN uses, named as in ONEDNN_MAX_CPU_ISA but in lower
// case: "avx2", "avx512_core". Calls LimitDnnlIsa().
std::string_view DnnlIsaName();

// Returns whether oneDNN has native bf16 products. With AVX-512 alone it emulates them, at a
// quarter of fp32's rate. Calls LimitDnnlIsa().
bool DnnlHasBf16();

// Matrix products of oneDNN, for a pool of threads.
class DnnlGemms {
 public:
  // `scratch` is memory per thread for the products, and must outlive them.
  DnnlGemms(int threads, Workspace& scratch);
  ~DnnlGemms();

  // Makes a product. If oneDNN has none for the shape on this processor, the process ends: request
  // bf16 only if DnnlHasBf16().
  std::unique_ptr<Gemm> Make(const GemmShape& shape) const;
  // Returns whether bf16 products are fast with b packed, and slow without.
  bool HasPackedKernels() const;

 private:
  struct Threads;
  std::unique_ptr<Threads> threads_;
};

// Returns "oneDNN 2.6.3 avx512_core_amx".
std::string DnnlDescription();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_DNNL_GEMM_H_
