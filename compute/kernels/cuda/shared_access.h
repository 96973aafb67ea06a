#ifndef TESSERA_COMPUTE_KERNELS_CUDA_SHARED_ACCESS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_SHARED_ACCESS_H_

#include <cstdint>
#include <vector>

namespace tessera::simt {

// The shared memory of one simulated block, and who touched it since which barrier.
//
// A race is an access by one thread to what another wrote, or a write to what another read, with no
// barrier of the block, or of the warp that both belong to, in between.
class SharedAccess {
 public:
  // A new block: memory is all ones, which is NaN in every floating type.
  void Reset(int64_t bytes, int threads);
  void SyncBlock() { ++block_epoch_; }
  void SyncWarp(int warp) { ++warp_epochs_[warp]; }

  // Records an access. Returns what is wrong with it, or null. Precondition: `begin` and `bytes`
  // are even, and within bounds.
  const char* Check(int thread, int64_t begin, int64_t bytes, bool write);

  char* data() { return memory_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  // The last accesses to two adjacent bytes.
  struct Cell {
    uint32_t write_epoch = 0;  // 0: not written in this block
    uint32_t write_warp_epoch = 0;
    uint32_t read_epoch = 0;
    uint32_t read_warp_epoch = 0;
    int32_t writer = 0;
    int32_t reader = 0;          // the last one
    bool warp_readers = false;   // others of the reader's warp, too, since the warp's barrier
    bool block_readers = false;  // readers of several warps, since the block's barrier
  };

  bool Ordered(int thread, int other, uint32_t block_epoch, uint32_t warp_epoch) const;
  const char* CheckRead(Cell& cell, int thread) const;
  const char* CheckWrite(Cell& cell, int thread) const;

  std::vector<char> memory_;
  std::vector<Cell> cells_;
  uint32_t block_epoch_ = 1;
  std::vector<uint32_t> warp_epochs_;
};

}  // namespace tessera::simt

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_SHARED_ACCESS_H_
