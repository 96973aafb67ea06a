#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SIMT_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SIMT_H_

// The part of CUDA that the kernels of this folder are written in. nvcc maps it to the device
// (simt_device.h). Any other compiler maps it to a simulated device (simt_host.h), on which the
// same source runs, and is checked, on a machine without a GPU.
//
// A kernel is a function `TESSERA_KERNEL void Name(arguments)`; functions that it calls are marked
// TESSERA_DEVICE. Before its name, TESSERA_BOUNDS(threads, blocks) limits its registers so that
// `blocks` of `threads` fit on a multiprocessor. It is started by
//
//   Launch<Name>(grid, threads, shared_bytes, stream, arguments...);
//
// with a Grid of blocks of `threads` threads (a multiple of kWarpSize, at most 1024). Every
// argument is passed by value. A launch returns no error: errors are kept, see TakeLaunchError().
// An empty grid launches nothing.
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
//   CombineLanes<distances...>(lanes, value, combine)
//                                           for each distance, the lane's value becomes combine(its
//                                           own, that of ShuffleXor())
//   AtomicAdd(address, value)               integers only: float atomics are not deterministic
//   AwaitTurn(turn, count)                  until so many blocks have passed it
//   PassTurn(turn)                          one thread, after a barrier: the block's turn is over
//   LoadInTurn<N>(turn, address, to)        of memory that blocks use one after the other, each
//   StoreInTurn<N>(turn, from, address)     between the two above; as LoadPack() and StorePack()
//   SharedMemory::Take<T>(count)            the next array of the block's shared memory
//   SharedMemory::AlignTo(bytes)            skips to an address that is a multiple; arrays are
//                                           aligned to 16 bytes otherwise
//   WaitForCopies()                         of the thread: CopyPackAsync() into shared memory
//   Exp2(x), MaxOrNan(a, b)                 by the instructions of these names
//   LoadPack<N>(address, to)                N adjacent elements as floats; the address is aligned
//   StorePack<N>(from, address)             to their size together, at most to 16 bytes
//   LoadStored<N>(address), Unpack<T>()     the two halves of LoadPack(): in between, other loads
//   StoreStored(stored, address)            as StorePack(), of elements as memory has them
//   BFloat16Pair(first, second)             two bf16 numbers as one word; a NaN is 0x7fff, as in
//                                           StorePack() and FromFloat<BFloat16>()
//
// All of shared memory is dynamic: a kernel takes its arrays, in order, from one SharedMemory.
// SharedArray<T> is read by Get(i) and written by Set(i, value), two elements of 2 bytes by
// SetPair(i, word); 16 bytes at once are read by GetPack() and copied from global memory, while the
// thread goes on, by CopyPackAsync().
//
// A block may wait for the turns of blocks alone that have begun before it, which the order of
// blocks in the grid does not tell: it takes its part of the work by AtomicAdd() on a number that
// all blocks share.
//
// The simulated device reports, with kernel, block and thread:
// - a thread that leaves, or waits elsewhere, while others wait at SyncThreads();
// - lanes that disagree on a shuffle, or name lanes that are not there;
// - shared memory that is read before it is written in this block, or used beyond its bounds;
// - shared memory that is touched while it is being copied, before a wait;
// - shared memory that two threads touch, one of them writing, without a barrier in between;
// - threads that leave before their copies have arrived;
// - launches beyond the device's limits;
// - a wait for a turn that no block before has passed, and memory that is used out of turn;
// - packs that are not aligned.
//
// Shared memory starts out as NaN. Blocks, and the threads of a block, run in a random order that a
// seed repeats. AddressSanitizer finds accesses outside global memory. In sources that are compiled
// with -fsanitize=thread, which all kernels are, races between blocks on global memory are found,
// too (memory_access.h).

#ifdef __CUDACC__
#include "compute/kernels/cuda/simt_device.h"
#else
#include "compute/kernels/cuda/testing/simt_host.h"
#endif

#include <cstdint>

namespace tessera::simt {

// Returns the number of blocks of `size` that hold `count` elements.
TESSERA_HOST_DEVICE constexpr int64_t BlocksOf(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// Divides numbers from 0 to 2^31 by a constant in three instructions (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994); a division of 64 bits takes twenty
// times as many. Precondition: the constant is positive and below 2^31.
class Divisor {
 public:
  explicit Divisor(int64_t divisor = 1) : divisor_(static_cast<uint32_t>(divisor)) {
    while (int64_t{1} << shift_ < divisor) ++shift_;
    const uint64_t excess = (uint64_t{1} << shift_) - divisor_;
    multiplier_ = static_cast<uint32_t>((excess << 32) / divisor_ + 1);
  }

  TESSERA_DEVICE uint32_t Quotient(uint32_t n) const {
    return (static_cast<uint32_t>(uint64_t{n} * multiplier_ >> 32) + n) >> shift_;
  }
  TESSERA_DEVICE uint32_t Remainder(uint32_t n) const { return n - Quotient(n) * divisor_; }
  TESSERA_DEVICE uint32_t divisor() const { return divisor_; }

 private:
  uint32_t divisor_;
  uint32_t multiplier_;
  int shift_ = 0;
};

TESSERA_HOST_DEVICE constexpr int Min(int a, int b) { return a < b ? a : b; }

TESSERA_DEVICE int Lane() { return ThreadIndex() % kWarpSize; }
TESSERA_DEVICE int WarpIndex() { return ThreadIndex() / kWarpSize; }

// Returns the sum, or maximum, over the lanes of a warp, the same in each. Every lane takes part.
// The order of additions is fixed: lanes 16 apart first, adjacent ones last.
template <typename T>
TESSERA_DEVICE T WarpSum(T value) {
  return CombineLanes<16, 8, 4, 2, 1>(kAllLanes, value, [](T a, T b) { return a + b; });
}

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SIMT_H_
