#ifndef TESSERA_COMPUTE_KERNELS_CUDA_PROBE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_PROBE_H_

#include <cstdint>
#include <string>

namespace tessera {

// What this machine offers the CUDA backend.
struct CudaProbe {
  int nccl_version = 0;     // as NCCL_VERSION_CODE: 22907 for 2.29.7
  int runtime_version = 0;  // as CUDART_VERSION: 13000 for 13.0
  int devices = 0;
  std::string device_name;  // of device 0; empty without one
  // Empty when device 0 ran a kernel and returned the right sum, or when there is no device.
  std::string error;
};

// Never fails: a machine without a driver or a device gives devices = 0.
CudaProbe ProbeCuda();

// One line for people, e.g. "NCCL 2.27.7, CUDA 13.0, no device".
std::string ToString(const CudaProbe& probe);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_PROBE_H_
