#ifndef TESSERA_COMPUTE_KERNELS_CPU_DNNL_GEMM_H_
#define TESSERA_COMPUTE_KERNELS_CPU_DNNL_GEMM_H_

#include <memory>
#include <string>

#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {

// Matrix products of oneDNN, for a pool of threads.
class DnnlGemms {
 public:
  // `scratch`: scratch memory per thread for the products; must outlive them.
  DnnlGemms(int threads, Workspace& scratch);
  ~DnnlGemms();

  // If oneDNN has no product for the shape on this processor, the process ends: request bf16 only
  // where DnnlHasBf16() (dnnl_isa.h).
  std::unique_ptr<Gemm> Make(const GemmShape& shape) const;
  // Whether bf16 products are fast with b packed, and slow without.
  bool HasPackedKernels() const;

 private:
  struct Threads;
  std::unique_ptr<Threads> threads_;
};

// "oneDNN 2.6.3 avx512_core_amx".
std::string DnnlDescription();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_DNNL_GEMM_H_
