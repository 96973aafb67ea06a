#include <cuda_runtime.h>
#include <nccl.h>

#include <string>

#include "compute/kernels/cuda/probe.h"

namespace tessera {
namespace {

constexpr int kBlock = 256;
constexpr int kElements = 1000;  // not a multiple of the block size

__global__ void SumIndices(int count, unsigned long long* sum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) atomicAdd(sum, static_cast<unsigned long long>(i));
}

// Returns the error of the first step that fails, or of a wrong sum; empty on success.
std::string RunKernel() {
  unsigned long long* device_sum = nullptr;
  unsigned long long sum = 0;
  cudaError_t status = cudaMalloc(&device_sum, sizeof(sum));
  if (status != cudaSuccess) return std::string("cudaMalloc: ") + cudaGetErrorString(status);
  status = cudaMemset(device_sum, 0, sizeof(sum));
  if (status == cudaSuccess) {
    SumIndices<<<(kElements + kBlock - 1) / kBlock, kBlock>>>(kElements, device_sum);
    status = cudaGetLastError();
  }
  if (status == cudaSuccess) {
    status = cudaMemcpy(&sum, device_sum, sizeof(sum), cudaMemcpyDeviceToHost);
  }
  cudaFree(device_sum);
  if (status != cudaSuccess) return std::string("kernel: ") + cudaGetErrorString(status);
  const unsigned long long expected = kElements * (kElements - 1) / 2;
  if (sum != expected) {
    return "kernel: sum " + std::to_string(sum) + ", expected " + std::to_string(expected);
  }
  return "";
}

}  // namespace

CudaProbe ProbeCuda() {
  CudaProbe probe;
  if (ncclGetVersion(&probe.nccl_version) != ncclSuccess) probe.error = "ncclGetVersion failed";
  if (cudaRuntimeGetVersion(&probe.runtime_version) != cudaSuccess) {
    probe.error = "cudaRuntimeGetVersion failed";
  }
  if (cudaGetDeviceCount(&probe.devices) != cudaSuccess) probe.devices = 0;
  if (probe.devices == 0) return probe;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess) probe.device_name = properties.name;
  if (probe.error.empty()) probe.error = RunKernel();
  return probe;
}

std::string ToString(const CudaProbe& probe) {
  const int nccl = probe.nccl_version, cuda = probe.runtime_version;
  std::string text = "NCCL " + std::to_string(nccl / 10000) + "." +
                     std::to_string(nccl / 100 % 100) + "." + std::to_string(nccl % 100) +
                     ", CUDA " + std::to_string(cuda / 1000) + "." +
                     std::to_string(cuda / 10 % 100) + ", ";
  text +=
      probe.devices == 0 ? "no device" : std::to_string(probe.devices) + " x " + probe.device_name;
  if (!probe.error.empty()) return text + ", broken: " + probe.error;
  return probe.devices == 0 ? text : text + ", kernel ran";
}

}  // namespace tessera
