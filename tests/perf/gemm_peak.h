#ifndef TESSERA_TESTS_PERF_GEMM_PEAK_H_
#define TESSERA_TESTS_PERF_GEMM_PEAK_H_

// What this machine can do, measured: the limits that the figures of the benchmarks are ratios of.

#include <algorithm>
#include <thread>

#include "trainer/tensor/dtype.h"

namespace tessera {

inline int AllProcessors() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// The best rate that matrix products reach with `threads` threads at the level of instructions that
// TESSERA_CPU allows, in floating-point operations per second: oneDNN's and, in fp32, OpenBLAS's;
// large square-ish shapes, plain and packed weights, oneDNN's own threads or one product a thread.
// The median over repetitions, the best over configurations. F32 or BF16; where the processor has
// no instructions for bf16, its limit is fp32's. Some seconds.
double BestGemmRate(DType dtype, int threads = AllProcessors());

// Bytes per second (read and written) of `threads` threads that pass over arrays far larger than
// the caches: the better of a sum (reads) and an update in place (reads and writes). 1 GiB of
// memory, about a second.
double BestMemoryRate(int threads = AllProcessors());

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_GEMM_PEAK_H_
