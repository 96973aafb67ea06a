#ifndef TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "compute/kernels/backend.h"

namespace tessera {

// The operations on this machine's processors, for fp32 and bf16: oneDNN or OpenBLAS's kernels for
// matrix products (gemm_cache.h), vector loops for the rest. Results do not depend on `threads`,
// which includes the caller's thread. Where the processor has no bf16 instructions, products are
// computed in fp32 and rounded once.
//
// Threads: one backend belongs to one calling thread; several backends may run concurrently.
// Memory: scratch memory for the largest operation so far is kept (MemoryCategory::kWorkspace).
std::unique_ptr<Backend> MakeCpuBackend(int threads);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_H_
