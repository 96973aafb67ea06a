#ifndef TESSERA_TRAINER_KERNELS_CPU_DNNL_GEMM_H_
#define TESSERA_TRAINER_KERNELS_CPU_DNNL_GEMM_H_

#include <memory>
#include <string>

#include "trainer/kernels/cpu/gemm.h"
#include "trainer/kernels/cpu/workspace.h"

namespace tessera {

// Matrix products of oneDNN, for a pool of threads.
class DnnlGemms {
 public:
  // `scratch`: of the products, on the thread that runs one; it outlives them.
  DnnlGemms(int threads, Workspace& scratch);
  ~DnnlGemms();

  // A shape that oneDNN has no product for on this processor ends the process: bf16 is asked for
  // where DnnlHasBf16() (dnnl_isa.h) alone.
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

#endif  // TESSERA_TRAINER_KERNELS_CPU_DNNL_GEMM_H_
