#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SIMT_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SIMT_H_

// The part of CUDA that the kernels of this folder are written in. nvcc maps it to the device
// (simt_device.h). Any other compiler maps it to a simulated device (simt_host.h), on which the
// same source runs, and is checked, on a machine without a GPU.
//
// A kernel is a function `TESSERA_KERNEL void Name(arguments)`; functions that it calls are marked
// TESSERA_DEVICE. It is started by
//
//   Launch<Name>(grid, threads, shared_bytes, stream, arguments...);
//
// with a Grid of blocks of `threads` threads (a multiple of kWarpSize, at most 1024). Every
// argument is passed by value. A launch never fails for the caller: errors are kept, see
// TakeLaunchError(). An empty grid launches nothing.
//
// Inside a kernel:
//
//   ThreadIndex(), ThreadCount()            of the block; one dim
//   BlockX(), BlockY(), BlockZ()            position in the grid
//   WarpIndex(), Lane()
//   SyncThreads()                           every thread of the block, at the same place
//   SyncWarp()                              every lane of the warp; orders its shared memory
//   ShuffleXor(lanes, value, distance)      every lane named by `lanes`, itself named by it
//   ShuffleFrom(lanes, value, source)       likewise; `source` must be one of `lanes`
//   AtomicAdd(address, value)               integers only: float atomics are not deterministic
//   SharedMemory::Take<T>(count)            the next array of the block's shared memory
//   LoadPack<N>(address, to)                N adjacent elements as floats; the address is aligned
//   StorePack<N>(from, address)             to their size together
//
// All of shared memory is dynamic: a kernel takes its arrays, in order, from one SharedMemory.
// SharedArray<T> is read by Get(i) and written by Set(i, value), or 16 bytes at once by SetPack().
//
// The simulated device reports, with kernel, block and thread: a thread that leaves, or waits
// elsewhere, while others wait at SyncThreads(); lanes that disagree on a shuffle or name lanes
// that are not there; shared memory that is read before it is written in this block, used beyond
// its bounds, or touched by two threads, one of them writing, without a barrier in between;
// launches beyond the device's limits; packs that are not aligned. Shared memory starts out as NaN.
// Blocks, and the threads of a block, run in a random order that a seed repeats. AddressSanitizer
// finds accesses outside global memory.

#ifdef __CUDACC__
#include "compute/kernels/cuda/simt_device.h"
#else
#include "compute/kernels/cuda/simt_host.h"
#endif

#include <cstdint>

namespace tessera::simt {

// The number of blocks of `size` that hold `count` elements.
TESSERA_HOST_DEVICE constexpr int64_t BlocksOf(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

TESSERA_DEVICE int Lane() { return ThreadIndex() % kWarpSize; }
TESSERA_DEVICE int WarpIndex() { return ThreadIndex() / kWarpSize; }

// The sum, or maximum, over the lanes of a warp, the same in each. Every lane takes part. The order
// of additions is fixed: lanes 16 apart first, adjacent ones last.
template <typename T>
TESSERA_DEVICE T WarpSum(T value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += ShuffleXor(kAllLanes, value, distance);
  }
  return value;
}

template <typename T>
TESSERA_DEVICE T WarpMax(T value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const T other = ShuffleXor(kAllLanes, value, distance);
    value = value < other ? other : value;
  }
  return value;
}

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SIMT_H_
