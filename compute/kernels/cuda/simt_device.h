#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SIMT_DEVICE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SIMT_DEVICE_H_

// simt.h on an NVIDIA GPU. Included by simt.h, under nvcc only.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "compute/kernels/cuda/simt_common.h"
#include "compute/tensor/bfloat16.h"

#define TESSERA_KERNEL __global__
#define TESSERA_DEVICE __device__ __forceinline__
#define TESSERA_HOST_DEVICE __host__ __device__ __forceinline__

namespace tessera::simt {

using Stream = cudaStream_t;

TESSERA_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
TESSERA_DEVICE int ThreadCount() { return static_cast<int>(blockDim.x); }
TESSERA_DEVICE int64_t BlockX() { return blockIdx.x; }
TESSERA_DEVICE int64_t BlockY() { return blockIdx.y; }
TESSERA_DEVICE int64_t BlockZ() { return blockIdx.z; }
TESSERA_DEVICE void SyncThreads() { __syncthreads(); }
TESSERA_DEVICE void SyncWarp() { __syncwarp(); }

template <typename T>
TESSERA_DEVICE T ShuffleXor(uint32_t lanes, T value, int distance) {
  return __shfl_xor_sync(lanes, value, distance);
}

template <typename T>
TESSERA_DEVICE T ShuffleFrom(uint32_t lanes, T value, int source) {
  return __shfl_sync(lanes, value, source);
}

TESSERA_DEVICE int32_t AtomicAdd(int32_t* address, int32_t value) {
  return atomicAdd(address, value);
}

template <typename T>
class SharedArray {
 public:
  TESSERA_DEVICE explicit SharedArray(T* data) : data_(data) {}
  TESSERA_DEVICE T Get(int i) const { return data_[i]; }
  TESSERA_DEVICE void Set(int i, T value) const { data_[i] = value; }
  // Elements [begin, begin + count).
  TESSERA_DEVICE SharedArray Slice(int begin, int /*count*/) const {
    return SharedArray(data_ + begin);
  }
  // Elements i to i + kPack, i a multiple of it, become those at `from`, which is aligned to 16
  // bytes, or zeros.
  static constexpr int kPack = 16 / sizeof(T);
  TESSERA_DEVICE void SetPack(int i, const T* from) const {
    *reinterpret_cast<uint4*>(data_ + i) = *reinterpret_cast<const uint4*>(from);
  }
  TESSERA_DEVICE void ClearPack(int i) const {
    *reinterpret_cast<uint4*>(data_ + i) = make_uint4(0, 0, 0, 0);
  }
  // Elements i and i + 1, i even, as one word; T has two bytes.
  TESSERA_DEVICE uint32_t GetPair(int i) const {
    static_assert(sizeof(T) == 2);
    return *reinterpret_cast<const uint32_t*>(data_ + i);
  }

 private:
  T* data_;
};

extern __shared__ uint4 shared_memory_of_the_block[];

class SharedMemory {
 public:
  TESSERA_DEVICE SharedMemory() : next_(reinterpret_cast<char*>(shared_memory_of_the_block)) {}
  template <typename T>
  TESSERA_DEVICE SharedArray<T> Take(int count) {
    T* const data = reinterpret_cast<T*>(next_);
    next_ += (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
    return SharedArray<T>(data);
  }

 private:
  char* next_;
};

TESSERA_DEVICE float ToFloat(float value) { return value; }
TESSERA_DEVICE float ToFloat(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
template <typename T>
TESSERA_DEVICE T FromFloat(float value) {
  return T(value);
}

template <int kCount, typename T>
TESSERA_DEVICE void LoadPack(const T* from, float (&to)[kCount]) {
  const Pack<T, kCount> pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = ToFloat(pack.elements[i]);
}

template <int kCount, typename T>
TESSERA_DEVICE void StorePack(const float (&from)[kCount], T* to) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.elements[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// Keeps the first error of the calling thread's launches since its last TakeLaunchError().
void KeepLaunchError(std::string_view pretty_name, Grid grid, int threads, int64_t shared_bytes,
                     cudaError_t error);
// The first error of the calling thread: the kernel, its launch, and CUDA's word for it; empty if
// there was none.
std::string TakeLaunchError();

template <auto kKernel, typename... Arguments>
void Launch(Grid grid, int threads, int64_t shared_bytes, Stream stream, Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  constexpr int64_t kSharedBytesWithoutOptIn = 48 * 1024;
  cudaError_t error = IsWithinLimits(grid) ? cudaSuccess : cudaErrorInvalidConfiguration;
  if (error == cudaSuccess && shared_bytes > kSharedBytesWithoutOptIn) {
    error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  if (error == cudaSuccess) {
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z));
    kKernel<<<blocks, threads, static_cast<size_t>(shared_bytes), stream>>>(arguments...);
    error = cudaGetLastError();
  }
  if (error != cudaSuccess) {
    KeepLaunchError(PrettyKernelName<kKernel>(), grid, threads, shared_bytes, error);
  }
}

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SIMT_DEVICE_H_
