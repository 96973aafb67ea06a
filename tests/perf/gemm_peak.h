#ifndef TESSERA_TESTS_PERF_GEMM_PEAK_H_
#define TESSERA_TESTS_PERF_GEMM_PEAK_H_

// The measured limits of this machine, to which the benchmarks' figures are relative.

#include <algorithm>
#include <thread>

#include "layout/dtype.h"

namespace tessera {

inline int AllProcessors() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Returns the best rate of matrix products with `threads` threads at the instruction set that
// TESSERA_CPU allows, in floating-point operations per second. Our products and oneDNN's compete.
// The rate is the median over repetitions, and the best over configurations: large square-ish
// shapes, plain and packed weights, oneDNN's own threads or one product per thread. `dtype` is F32
// or BF16. If the processor has no bf16 instructions, the limit is fp32's. Takes some seconds.
double BestGemmRate(DType dtype, int threads = AllProcessors());

// Prints gemm.<dtype>.<shape>.ratio: the time of oneDNN over the time of our own product
// (compute/kernels/cpu/gemm). Times are processor times on one thread, at the instruction set that
// TESSERA_CPU allows. Also prints the means over the products of a GPT-2 124M step,
// gemm.<dtype>.step_4x64.ratio and step_1x1024. If oneDNN has no bf16 products, bf16 is compared
// with its fp32.
void PrintGemmRatios(DType dtype);

// Returns the bytes per second (read and written) of `threads` threads that traverse arrays far
// larger than the caches: the better of a sum (reads) and an update in place (reads and writes).
// Uses 1 GiB of memory and about a second.
double BestMemoryRate(int threads = AllProcessors());

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_GEMM_PEAK_H_
