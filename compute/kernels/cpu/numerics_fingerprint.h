#ifndef TESSERA_COMPUTE_KERNELS_CPU_NUMERICS_FINGERPRINT_H_
#define TESSERA_COMPUTE_KERNELS_CPU_NUMERICS_FINGERPRINT_H_

#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

// The numerics of MakeCpuBackend()'s backends in this process: instruction sets in effect, the
// library of matrix products, and the results of both for fixed operands. The products have shapes
// that use the packed and blocked code paths, long sums among them: how these are split depends on
// instruction set, caches and version. Computed on the first call, on the calling thread.
// Thread-safe.
const NumericsFingerprint& CpuNumericsFingerprint();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_NUMERICS_FINGERPRINT_H_
