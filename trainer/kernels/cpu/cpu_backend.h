#ifndef TESSERA_TRAINER_KERNELS_CPU_CPU_BACKEND_H_
#define TESSERA_TRAINER_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "trainer/kernels/backend.h"

namespace tessera {

// Whether this processor has bf16 products (oneDNN's need AVX-512). Where not, a bf16 product of the
// backend ends the process: whoever lets a user choose bf16 asks first.
bool CpuHasBf16Products();

// The operations on this machine's processors, for fp32 and bf16: oneDNN for matrix products,
// vector loops for the rest. Results do not depend on `threads`; the caller's thread is one of
// them. bf16 needs a processor with AVX-512.
//
// Threads: one backend belongs to one calling thread; several backends may work side by side.
// Memory: some scratch memory, of the size of what the largest operation needs, is kept
// (MemoryCategory::kWorkspace).
std::unique_ptr<Backend> MakeCpuBackend(int threads);

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_CPU_BACKEND_H_
