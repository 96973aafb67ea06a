#ifndef TESSERA_COMPUTE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define TESSERA_COMPUTE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

// The oracle of every kernel test and the engine of gradient checks: each operation of Backend as
// its formula, in naive loops. Slow on purpose; only tests use it.

#include <memory>

#include "compute/kernels/backend.h"

namespace tessera {

// Returns the backend. Arithmetic: fp64 throughout, whatever the operands' dtypes; every element of
// an output is rounded once, when it is stored. Operands: F32, BF16 and F64 in any mix (ids I32),
// any strides, even where the interface requires dense ones; outputs may overlap inputs. Threads:
// runs on the calling thread; stateless, so that one instance may serve several threads.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
