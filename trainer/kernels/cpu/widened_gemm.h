#ifndef TESSERA_TRAINER_KERNELS_CPU_WIDENED_GEMM_H_
#define TESSERA_TRAINER_KERNELS_CPU_WIDENED_GEMM_H_

#include <functional>
#include <memory>

#include "trainer/kernels/cpu/gemm.h"
#include "trainer/kernels/cpu/workspace.h"

namespace tessera {

// A product of bf16 operands for processors without instructions for it: the operands are widened
// to fp32 in scratch memory, in parts of k that caches hold, multiplied in fp32, and the sum over
// all of k is rounded once.
//
// wide: makes fp32's products, which outlive this one. scratch: on the thread that runs the
// product, apart from what fp32's products use themselves; it outlives the product.
std::unique_ptr<Gemm> MakeWidenedGemm(const GemmShape& shape,
                                      const std::function<const Gemm&(const GemmShape&)>& wide,
                                      Workspace& scratch);

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_WIDENED_GEMM_H_
