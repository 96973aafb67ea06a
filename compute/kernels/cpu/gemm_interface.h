#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_INTERFACE_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_INTERFACE_H_

#include <span>

#include "compute/kernels/cpu/gemm/gemm.h"

namespace tessera {

// One matrix product, or a sum of them, ours or a library's, ready to run on any thread of the
// pool. Its result depends on its shape and operands alone, not on their addresses or on the
// thread.
//
// Signals: some products that oneDNN generates (fp32 "gemm:jit", for inner dimensions above 252, or
// 84 with AVX-512) let the stack pointer point into a buffer on the heap while they run. A signal
// handler that the kernel starts on that stack overwrites memory below the buffer: numbers, or the
// heap's own records. ONEDNN_VERBOSE=1 names the products of that kind. With AVX-512, they are the
// tiles of nearly all linear layers, which are transposed or part of a wider c. "brg" products,
// such as those of attention, keep their stack. Our own products never do this. The trainer
// therefore blocks asynchronous signals on all compute threads (trainer/app/signals.h). Any other
// program that runs products must block them, too, or install its handlers with SA_ONSTACK and give
// every compute thread a sigaltstack(). A profiler inside the process that unblocks its signals or
// directs them at compute threads still corrupts memory; one outside the process (perf, gdb) does
// not.
class Gemm {
 public:
  virtual ~Gemm() = default;
  // Computes the product on the calling thread alone, from as many operands as its shape has terms.
  // `thread` is its index in the pool.
  virtual void Run(int thread, std::span<const GemmOperands> terms, void* c,
                   const void* bias) const = 0;
  void Run(int thread, const void* a, const void* b, void* c, const void* bias = nullptr) const {
    const GemmOperands term = {a, b};
    Run(thread, {&term, 1}, c, bias);
  }
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_INTERFACE_H_
