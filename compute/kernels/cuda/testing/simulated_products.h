#ifndef TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_PRODUCTS_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_PRODUCTS_H_

// The products of warpgroups on the simulated device: wgmma.mma_async.m64nNk16 of bf16 with sums in
// fp32, as "PTX ISA" describes it under "Asynchronous Warpgroup Level Matrix Instructions".
//
// Each warp computes its 16 rows. A product reads its operands between the call that queues it and
// the end of the wait for its group. In between its sums are NaN. It is an error
// - to change its registers, or the shared memory that it reads, in between;
// - to queue it without wgmma.fence since the registers changed;
// - if what it reads was written with no fence.proxy.async of the writer, followed by a barrier;
// - if the warps of a warpgroup queue other products, or at other places;
// - to return without a commit and a wait;
// - if a descriptor has undefined bits, begins within a pattern of its swizzle, or leads beyond
//   shared memory.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "compute/kernels/cuda/simt_common.h"
#include "compute/kernels/cuda/testing/memory_access.h"
#include "compute/kernels/cuda/testing/simt_host.h"

namespace tessera::simt {

// Registers of a thread: an array on its stack.
struct Registers {
  const void* begin;
  int64_t bytes;
};

// A lane's view of its warp's part of sums[64, columns] (+)= left[64, 16] right[16, columns].
struct QueuedProduct {
  float* sums = nullptr;  // columns / 2
  int columns = 0;
  bool accumulates = true;
  const uint32_t* left = nullptr;  // four registers; null: `left_matrix`
  uint64_t left_matrix = 0;        // a descriptor, of rows of inner indices
  uint64_t right_matrix = 0;
  bool right_rows_are_inner = false;  // or else columns
  Site site;
};

// wgmma.fence: orders the calling thread's uses of these registers before products.
void FenceRegisters(std::initializer_list<Registers> registers, Site site);
void QueueProduct(const QueuedProduct& product);
// wgmma.commit_group, and wgmma.wait_group, which leaves the last groups.
void CommitProducts(Site site);
void FinishProducts(int groups_left, Site site);
// fence.proxy.async: what the calling thread has written can be multiplied after a barrier.
void FenceProxy();

namespace internal {

// The products of one block. Functions return what is wrong, or nothing.
class WarpgroupProducts {
 public:
  explicit WarpgroupProducts(SharedAccess& shared) : shared_(shared) {}

  // Begins a new block.
  void Reset(int threads);
  // Called for all lanes of the warp of a thread.
  void Fence(int thread, const std::initializer_list<Registers>* const lanes[kWarpSize]);
  std::string Queue(int thread, const QueuedProduct* const lanes[kWarpSize]);
  void Commit(int thread) { ++warps_[thread / kWarpSize].groups; }
  std::string Finish(int thread, int groups_left, const Site& site);

  bool IsPending(int thread) const { return !warps_[thread / kWarpSize].pending.empty(); }
  // Checks that all warps of each warpgroup have queued the same. Called at the end of a block.
  std::string CheckEnd() const;

 private:
  struct Pending {
    int64_t group;
    std::array<QueuedProduct, kWarpSize> lanes;
    std::array<std::array<uint32_t, 4>, kWarpSize> left;
    std::array<std::vector<float>, kWarpSize> sums;  // before; none after another product of them
  };
  struct Fenced {
    const char* begin;
    std::vector<char> contents;
  };
  // What the warps of a warpgroup must have in common.
  struct Event {
    Site site;
    uint64_t left_matrix, right_matrix;
    int columns;
    bool operator==(const Event& other) const = default;
  };
  struct Warp {
    std::vector<Pending> pending;
    int64_t groups = 0;  // that are committed
    int64_t events = 0;
  };

  std::string Agree(int thread, const Event& event);
  // Returns whether a product of the same sums and columns is queued.
  bool Follows(int thread, const QueuedProduct& product) const;
  bool IsFenced(int thread, const void* begin, int64_t bytes) const;
  void Compute(int thread, const Pending& product);

  SharedAccess& shared_;
  std::vector<Warp> warps_;
  std::vector<std::vector<Event>> events_;   // of each warpgroup
  std::vector<std::vector<Fenced>> fenced_;  // of each thread, since its last wait
};

}  // namespace internal
}  // namespace tessera::simt

namespace tessera::cuda {

// Do what the instructions of warpgroup.h do.
inline void PublishCopies() {
  simt::WaitForCopies();
  simt::FenceProxy();
}

inline constexpr struct {
} kNoRegisters;
using NoRegisters = decltype(kNoRegisters);
template <typename A, typename B = NoRegisters, typename C = NoRegisters, typename D = NoRegisters>
void BeginProducts(A& a, B& b = kNoRegisters, C& c = kNoRegisters, D& d = kNoRegisters,
                   simt::Site site = simt::Site::Here()) {
  simt::FenceRegisters({{&a, sizeof(a)}, {&b, sizeof(b)}, {&c, sizeof(c)}, {&d, sizeof(d)}}, site);
}
template <typename A, typename B = NoRegisters, typename C = NoRegisters, typename D = NoRegisters>
void FinishProducts(A& /*a*/, B& /*b*/ = kNoRegisters, C& /*c*/ = kNoRegisters,
                    D& /*d*/ = kNoRegisters, simt::Site site = simt::Site::Here()) {
  simt::FinishProducts(/*groups_left=*/0, site);
}
template <typename A>
void FinishEarlierProducts(A& /*a*/, simt::Site site = simt::Site::Here()) {
  simt::FinishProducts(/*groups_left=*/1, site);
}
inline void CommitProducts(simt::Site site = simt::Site::Here()) { simt::CommitProducts(site); }

template <int kTiles>
void QueueProduct(uint64_t a, uint64_t b, bool accumulates, float (&sums)[kTiles][4],
                  simt::Site site = simt::Site::Here()) {
  simt::QueueProduct({.sums = &sums[0][0],
                      .columns = kTiles * 8,
                      .accumulates = accumulates,
                      .left_matrix = a,
                      .right_matrix = b,
                      .right_rows_are_inner = false,
                      .site = site});
}
template <int kTiles>
void QueueProduct(const uint32_t (&a)[4], uint64_t b, float (&sums)[kTiles][4],
                  simt::Site site = simt::Site::Here()) {
  simt::QueueProduct({.sums = &sums[0][0],
                      .columns = kTiles * 8,
                      .accumulates = true,
                      .left = a,
                      .right_matrix = b,
                      .right_rows_are_inner = true,
                      .site = site});
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_TESTING_SIMULATED_PRODUCTS_H_
