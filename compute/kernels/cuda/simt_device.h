#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SIMT_DEVICE_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SIMT_DEVICE_H_

// simt.h on an NVIDIA GPU. Included by simt.h, under nvcc only.

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/simt_common.h"
#include "tensor/bfloat16.h"

#define TESSERA_KERNEL __global__
#define TESSERA_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
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

// By words, of which values consist.
template <typename T>
TESSERA_DEVICE T ShuffleXor(uint32_t lanes, T value, int distance) {
  auto words = std::bit_cast<Pack<uint32_t, sizeof(T) / 4>>(value);
#pragma unroll
  for (uint32_t& word : words.elements) word = __shfl_xor_sync(lanes, word, distance);
  return std::bit_cast<T>(words);
}

template <typename T>
TESSERA_DEVICE T ShuffleFrom(uint32_t lanes, T value, int source) {
  auto words = std::bit_cast<Pack<uint32_t, sizeof(T) / 4>>(value);
#pragma unroll
  for (uint32_t& word : words.elements) word = __shfl_sync(lanes, word, source);
  return std::bit_cast<T>(words);
}

template <int... kDistances, typename T, typename Combine>
TESSERA_DEVICE T CombineLanes(uint32_t lanes, T value, const Combine& combine) {
  ((value = combine(value, ShuffleXor(lanes, value, kDistances))), ...);
  return value;
}

TESSERA_DEVICE int32_t AtomicAdd(int32_t* address, int32_t value) {
  return atomicAdd(address, value);
}

TESSERA_DEVICE void AwaitTurn(const int32_t* turn, int32_t count) {
  int32_t now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != count);
}
TESSERA_DEVICE void PassTurn(int32_t* turn) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}

template <typename T>
class SharedArray {
 public:
  TESSERA_DEVICE explicit SharedArray(T* data) : data_(data) {}
  TESSERA_DEVICE T Get(int i) const { return data_[i]; }
  TESSERA_DEVICE void Set(int i, T value) const { data_[i] = value; }
  TESSERA_DEVICE void SetPair(int i, uint32_t word) const {
    static_assert(sizeof(T) == 2);
    *reinterpret_cast<uint32_t*>(data_ + i) = word;
  }
  // Returns elements [begin, begin + count).
  TESSERA_DEVICE SharedArray Slice(int begin, int /*count*/) const {
    return SharedArray(data_ + begin);
  }
  // Number of elements of a pack, which begins at a multiple of it.
  static constexpr int kPack = 16 / sizeof(T);
  TESSERA_DEVICE void GetPack(int i, T (&to)[kPack]) const {
    *reinterpret_cast<Pack<T, kPack>*>(to) = *reinterpret_cast<const Pack<T, kPack>*>(data_ + i);
  }
  // Copies a pack from `from`, which is aligned to 16 bytes, or zeros if not `copies`; complete
  // after WaitForCopies().
  TESSERA_DEVICE void CopyPackAsync(int i, const T* from, bool copies) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(Address(i)), "l"(from),
                 "r"(copies ? 16 : 0)
                 : "memory");
  }
  TESSERA_DEVICE uint32_t Address(int i) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(data_ + i));
  }

 private:
  T* data_;
};

TESSERA_DEVICE void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

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
  TESSERA_DEVICE void AlignTo(int bytes) {
    next_ += -static_cast<uint32_t>(__cvta_generic_to_shared(next_)) & (bytes - 1);
  }

 private:
  char* next_;
};

TESSERA_DEVICE float ToFloat(float value) { return value; }
TESSERA_DEVICE float ToFloat(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
// Returns two bf16 numbers as one word, the first one in its lower half.
TESSERA_DEVICE uint32_t BFloat16Pair(float first, float second) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
// Returns 2^x, within a relative error of 2^-22; 0 instead of a subnormal number.
TESSERA_DEVICE float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// Returns the larger number, or NaN if one of them is.
TESSERA_DEVICE float MaxOrNan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
template <typename T>
TESSERA_DEVICE T FromFloat(float value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    BFloat16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
  } else {
    return T(value);
  }
}

template <int kCount, typename T>
TESSERA_DEVICE Stored<T, kCount> LoadStored(const T* from) {
  return *reinterpret_cast<const Stored<T, kCount>*>(from);
}

template <typename T, int kCount>
TESSERA_DEVICE void Unpack(const Stored<T, kCount>& stored, float (&to)[kCount]) {
  using Word = typename Stored<T, kCount>::Word;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<Word, T>) {
      to[i] = ToFloat(stored.elements[i]);
    } else if constexpr (sizeof(T) == sizeof(Word)) {
      to[i] = __uint_as_float(stored.elements[i]);
    } else {
      const uint32_t word = stored.elements[i / 2];
      to[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000);
    }
  }
}

template <typename T, int kCount>
TESSERA_DEVICE void StoreStored(const Stored<T, kCount>& from, T* to) {
  *reinterpret_cast<Stored<T, kCount>*>(to) = from;
}

template <int kCount, typename T>
TESSERA_DEVICE void LoadPack(const T* from, float (&to)[kCount]) {
  Unpack<T>(LoadStored<kCount>(from), to);
}

template <int kCount, typename T>
TESSERA_DEVICE void StorePack(const float (&from)[kCount], T* to) {
  if constexpr (std::is_same_v<T, BFloat16> && kCount % 2 == 0) {
    Pack<uint32_t, kCount / 2> pack;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      pack.elements[i] = BFloat16Pair(from[2 * i], from[2 * i + 1]);
    }
    *reinterpret_cast<Pack<uint32_t, kCount / 2>*>(to) = pack;
  } else {
    Pack<T, kCount> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.elements[i] = FromFloat<T>(from[i]);
    *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
  }
}

template <int kCount>
TESSERA_DEVICE void LoadInTurn(const int32_t* /*turn*/, const float* from, float (&to)[kCount]) {
  LoadPack(from, to);
}
template <int kCount>
TESSERA_DEVICE void StoreInTurn(const int32_t* /*turn*/, const float (&from)[kCount], float* to) {
  StorePack(from, to);
}

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
    KeepLaunchError(PrettyKernelName<kKernel>(), grid, threads, shared_bytes,
                    cudaGetErrorString(error));
  }
}

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SIMT_DEVICE_H_
