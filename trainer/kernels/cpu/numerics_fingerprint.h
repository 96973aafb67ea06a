#ifndef TESSERA_TRAINER_KERNELS_CPU_NUMERICS_FINGERPRINT_H_
#define TESSERA_TRAINER_KERNELS_CPU_NUMERICS_FINGERPRINT_H_

#include "trainer/kernels/numerics_fingerprint.h"

namespace tessera {

// The numerics of MakeCpuBackend()'s backends in this process: instruction sets in effect, the
// library of matrix products, and what both compute for fixed operands. The products are of shapes
// for which packed and blocked ways are taken, long sums among them: where they are cut depends on
// instruction set, caches and version. Computed on the first call, on the calling thread; any
// thread may call.
const NumericsFingerprint& CpuNumericsFingerprint();

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_NUMERICS_FINGERPRINT_H_
