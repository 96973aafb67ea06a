#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_LIBRARIES_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_LIBRARIES_H_

// The libraries of matrix products between which GemmCache chooses.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/workspace.h"
#include "compute/tensor/bfloat16.h"

namespace tessera {

// Limits oneDNN to the instruction sets that TESSERA_CPU allows (base/cpu_level.h). A lower limit,
// which a user sets with the variable ONEDNN_MAX_CPU_ISA or DNNL_MAX_CPU_ISA, is kept.
//
// Must be called before oneDNN is first used, which fixes the instruction sets of the process;
// further calls do nothing. Thread-safe.
void LimitDnnlIsa();

// The newest instruction set that oneDNN uses, named as in ONEDNN_MAX_CPU_ISA but in lower case:
// "avx2", "avx512_core". Calls LimitDnnlIsa().
std::string_view DnnlIsaName();

// Whether oneDNN has native bf16 products. With AVX-512 alone it emulates them, at a quarter of
// fp32's rate. Calls LimitDnnlIsa().
bool DnnlHasBf16();

// Matrix products of oneDNN, for a pool of threads.
class DnnlGemms {
 public:
  // `scratch`: scratch memory per thread for the products; must outlive them.
  DnnlGemms(int threads, Workspace& scratch);
  ~DnnlGemms();

  // If oneDNN has no product for the shape on this processor, the process ends: request bf16 only
  // where DnnlHasBf16().
  std::unique_ptr<Gemm> Make(const GemmShape& shape) const;
  // Whether bf16 products are fast with b packed, and slow without.
  bool HasPackedKernels() const;

 private:
  struct Threads;
  std::unique_ptr<Threads> threads_;
};

// "oneDNN 2.6.3 avx512_core_amx".
std::string DnnlDescription();

// An fp32 product by OpenBLAS's kernels for that level: Haswell's for AVX2, which run on every
// processor that has it, and Nehalem's for SSE4. Packing and blocking are done here, so that
//
// - no setting, lock or buffer of OpenBLAS is involved, and products run on any number of threads;
// - the choice of kernels does not depend on whether OpenBLAS knows the processor: one that is
//   newer than the library would get its slowest kernels;
// - the bits do not depend on the size of the processor's caches.
//
// scratch: memory per thread for the product, which it must outlive.
std::unique_ptr<Gemm> MakeOpenBlasGemm(const GemmShape& shape, CpuLevel level, Workspace& scratch);

// "OpenBLAS 0.3.21 Haswell".
std::string OpenBlasDescription(CpuLevel level);

// A product of bf16 operands for processors without bf16 instructions: the operands are widened to
// fp32 in scratch memory, in parts of k that fit into caches, multiplied in fp32, and the sum over
// all of k is rounded once.
//
// wide: creates the fp32 products, which must outlive this one. scratch: memory per thread,
// distinct from that of the fp32 products; must outlive the product.
std::unique_ptr<Gemm> MakeWidenedGemm(const GemmShape& shape,
                                      const std::function<const Gemm&(const GemmShape&)>& wide,
                                      Workspace& scratch);

// to[rows,columns], dense, = from[rows,columns], whose rows are from_stride apart.
void WidenRows(const BFloat16* from, int64_t from_stride, int64_t rows, int64_t columns, float* to);

// to[rows,columns], whose rows are to_stride apart, = from[rows,columns], dense; each element
// rounded as BFloat16(float) does.
void RoundRows(const float* from, int64_t rows, int64_t columns, BFloat16* to, int64_t to_stride);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_LIBRARIES_H_
