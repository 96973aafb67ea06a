// Prints one line on whether CUDA and NCCL work here. Exit status 1 when there is a device and it
// fails.

#include <cstdio>

#include "compute/kernels/cuda/probe.h"

int main() {
  const tessera::CudaProbe probe = tessera::ProbeCuda();
  std::printf("%s\n", tessera::ToString(probe).c_str());
  return probe.error.empty() ? 0 : 1;
}
