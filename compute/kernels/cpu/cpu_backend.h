#ifndef TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "compute/kernels/backend.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

// Returns a backend on this machine's processors, for fp32 and bf16: matrix products of gemm/ or of
// oneDNN (gemm_cache.h), vector loops for the rest. Results do not depend on `threads`, which
// includes the caller's thread. If the processor has no bf16 instructions, products are computed in
// fp32 and rounded once.
//
// Threads: one backend belongs to one calling thread; several backends may run concurrently.
// Memory: scratch memory for the largest operation so far is kept (MemoryCategory::kWorkspace).
// `exact`: matrix products have the bits of the contract of gemm/gemm.h on every processor.
std::unique_ptr<Backend> MakeCpuBackend(int threads, bool exact = false);

// Returns the numerics of the backends of this process: the contract of the loops, the library of
// matrix products, and the results of both for fixed operands. The products have shapes that use
// the packed and blocked code paths, and long sums, which a library splits depending on instruction
// set, caches and version. Computed on the first call, on the calling thread. Thread-safe.
//
const NumericsFingerprint& CpuNumericsFingerprint();

// Returns the EXACT numerics of a process that computes in fp32 alone, or, with `bf16`, in both.
// They name the contract of products instead of the library. They are the same on every processor,
// and in fp32 on every GPU. Likewise computed once, and thread-safe.
const NumericsFingerprint& ExactNumericsFingerprint(bool bf16);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_CPU_BACKEND_H_
