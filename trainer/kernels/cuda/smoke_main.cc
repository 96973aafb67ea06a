// Says in one line whether CUDA and NCCL work here; exit status 1 when a device is there and fails.

#include <cstdio>

#include "trainer/kernels/cuda/probe.h"

int main() {
  const tessera::CudaProbe probe = tessera::ProbeCuda();
  std::printf("%s\n", tessera::ToString(probe).c_str());
  return probe.error.empty() ? 0 : 1;
}
