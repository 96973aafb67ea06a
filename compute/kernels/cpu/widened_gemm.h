#ifndef TESSERA_COMPUTE_KERNELS_CPU_WIDENED_GEMM_H_
#define TESSERA_COMPUTE_KERNELS_CPU_WIDENED_GEMM_H_

#include <functional>
#include <memory>

#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/workspace.h"

namespace tessera {

// A product of bf16 operands for processors without bf16 instructions: the operands are widened to
// fp32 in scratch memory, in parts of k that fit into caches, multiplied in fp32, and the sum over
// all of k is rounded once.
//
// wide: creates the fp32 products, which must outlive this one. scratch: memory per thread,
// distinct from that of the fp32 products; must outlive the product.
std::unique_ptr<Gemm> MakeWidenedGemm(const GemmShape& shape,
                                      const std::function<const Gemm&(const GemmShape&)>& wide,
                                      Workspace& scratch);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_WIDENED_GEMM_H_
