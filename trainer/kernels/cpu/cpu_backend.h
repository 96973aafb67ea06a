#ifndef TESSERA_TRAINER_KERNELS_CPU_CPU_BACKEND_H_
#define TESSERA_TRAINER_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "trainer/kernels/backend.h"

namespace tessera {

// The operations on this machine's processors, for fp32 and bf16: oneDNN or OpenBLAS's kernels for
// matrix products (gemm_cache.h), vector loops for the rest. Results do not depend on `threads`; the
// caller's thread is one of them. Where the processor has no instructions for bf16, products are
// fp32's, rounded once.
//
// Threads: one backend belongs to one calling thread; several backends may work side by side.
// Memory: some scratch memory, of the size of what the largest operation needs, is kept
// (MemoryCategory::kWorkspace).
std::unique_ptr<Backend> MakeCpuBackend(int threads);

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_CPU_BACKEND_H_
