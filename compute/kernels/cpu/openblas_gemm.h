#ifndef TESSERA_COMPUTE_KERNELS_CPU_OPENBLAS_GEMM_H_
#define TESSERA_COMPUTE_KERNELS_CPU_OPENBLAS_GEMM_H_

#include <memory>
#include <string>

#include "base/cpu_level.h"
#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {

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

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_OPENBLAS_GEMM_H_
