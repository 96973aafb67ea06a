// Sums over tensors in fp64: blocks of a fixed size, then the binary tree over the blocks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

// The size of a block in Sum and SumOfSquares.
constexpr int64_t kBlock = 65536;
// Blocks that one block of a grid adds: a power of two, so that they are a subtree.
constexpr int64_t kGroupBlocks = 32;
constexpr int kSumThreads = 256;
// The largest number of tensors of one launch: as many as fit into its arguments.
constexpr int kMaxSummed = 128;

struct Summed {
  const void* data;
  int64_t count;
  int64_t first_group;  // of all tensors of the launch
};

struct SummedList {
  Summed at[kMaxSummed];
  int count = 0;
  int64_t groups = 0;

  // Finds the last tensor that does not begin behind the group.
  TESSERA_DEVICE int Find(int64_t group) const {
    int which = 0;
    for (int step = kMaxSummed / 2; step > 0; step /= 2) {
      if (which + step < count && at[which + step].first_group <= group) which += step;
    }
    return which;
  }
};

struct GlobalSums {
  double* data;
  TESSERA_DEVICE double Get(int64_t i) const { return data[i]; }
  TESSERA_DEVICE void Set(int64_t i, double value) const { data[i] = value; }
};

// sums[0] = T(0, count), by all threads of a block, which have met since the sums were written;
// thread 0 may read it at once. Other sums are overwritten.
template <typename Sums>
TESSERA_DEVICE void AddInTree(const Sums& sums, int64_t count) {
  for (int64_t step = 1; step < count; step *= 2) {
    for (int64_t i = 2 * step * simt::ThreadIndex(); i + step < count;
         i += 2 * step * simt::ThreadCount()) {
      const int at = static_cast<int>(i), other = static_cast<int>(i + step);
      sums.Set(at, sums.Get(at) + sums.Get(other));
    }
    simt::SyncThreads();
  }
}

// Sums a block as processors do (cpu/reduce.cc): lane i of 32 has elements i, i + 32, ..., for four
// sums of eight lanes; lanes 8 apart are added first, then those 16, 4, 2 and 1 apart, and at the
// end, one after the other, the elements behind the last whole 32.
template <typename T>
TESSERA_DEVICE double SumBlock(const T* x, int64_t count, bool squares) {
  const auto term = [&](int64_t i) {
    const double value = static_cast<double>(simt::ToFloat(x[i]));
    return squares ? value * value : value;
  };
  const int64_t whole = count / simt::kWarpSize * simt::kWarpSize;
  double sum = 0;
  for (int64_t i = simt::Lane(); i < whole; i += simt::kWarpSize) sum += term(i);
  sum = simt::CombineLanes<8, 16, 4, 2, 1>(simt::kAllLanes, sum,
                                           [](double a, double b) { return a + b; });
  for (int64_t i = whole; i < count; ++i) sum += term(i);
  return sum;
}

// groups[BlockX()] = the sum of a group of blocks. A warp adds each block.
template <typename T>
TESSERA_KERNEL void SumGroups(SummedList list, int64_t block, bool squares, double* groups) {
  const int which = list.Find(simt::BlockX());
  const T* const data = static_cast<const T*>(list.at[which].data);
  const int64_t first = (simt::BlockX() - list.at[which].first_group) * kGroupBlocks;
  const int64_t count = list.at[which].count, left = simt::BlocksOf(count, block) - first;
  const int blocks = static_cast<int>(left < kGroupBlocks ? left : kGroupBlocks);
  simt::SharedMemory memory;
  const simt::SharedArray<double> sums = memory.Take<double>(kGroupBlocks);
  for (int i = simt::WarpIndex(); i < blocks; i += kSumThreads / simt::kWarpSize) {
    const int64_t begin = (first + i) * block;
    const double sum =
        SumBlock(data + begin, count - begin < block ? count - begin : block, squares);
    if (simt::Lane() == 0) sums.Set(i, sum);
  }
  simt::SyncThreads();
  AddInTree(sums, blocks);
  if (simt::ThreadIndex() == 0) groups[simt::BlockX()] = sums.Get(0);
}

// Runs one block per tensor.
TESSERA_KERNEL void AddGroups(SummedList list, double* groups, double* sums) {
  const int which = static_cast<int>(simt::BlockX());
  const int64_t first = list.at[which].first_group;
  const int64_t end = which + 1 < list.count ? list.at[which + 1].first_group : list.groups;
  const GlobalSums own = {groups + first};
  AddInTree(own, end - first);
  if (simt::ThreadIndex() == 0) sums[which] = end == first ? 0.0 : own.Get(0);
}

}  // namespace

// Launches twice for up to kMaxSummed tensors, then copies all sums at once.
void DeviceKernels::SumAll(std::span<const TensorView> tensors, int64_t block, bool squares,
                           std::span<double> sums, const std::shared_ptr<double>& later) {
  std::vector<SummedList> lists(simt::BlocksOf(static_cast<int64_t>(tensors.size()), kMaxSummed));
  int64_t most_groups = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    SummedList& list = lists[i / kMaxSummed];
    const int64_t count = tensors[i].empty() ? 0 : tensors[i].elements();
    list.at[list.count++] = {tensors[i].data(), count, list.groups};
    list.groups += simt::BlocksOf(count, block * kGroupBlocks);
    most_groups = std::max(most_groups, list.groups);
  }
  const auto bytes = static_cast<int64_t>(sums.size_bytes());
  double* const on_device = Scratch<double>(static_cast<int64_t>(sums.size()) + most_groups);
  if (on_device == nullptr || bytes == 0) return;
  double *const groups = on_device + sums.size(), *next = on_device;
  for (const SummedList& list : lists) {
    WithType(tensors.front().dtype(), [&]<typename T>(T) {
      simt::Launch<SumGroups<T>>({list.groups}, kSumThreads, kGroupBlocks * sizeof(double),
                                 stream(), list, block, squares, groups);
    });
    simt::Launch<AddGroups>({list.count}, kSumThreads, 0, stream(), list, groups, next);
    next += list.count;
  }
  if (later != nullptr) return CopyToHostLater(on_device, bytes, later);
  CopyToHost(on_device, bytes, sums.data());
}

void DeviceKernels::Run(const ops::SumsOfSquares& op) {
  if (op.parts.empty()) return;
  const Operation here(*this, "SumsOfSquares", op.parts.front());
  SumAll(op.parts, op.block, /*squares=*/true, op.sums);
}

double DeviceKernels::Run(const ops::SumOfSquares& op) {
  const Operation here(*this, "SumOfSquares", op.x);
  double sum = 0;
  SumAll({&op.x, 1}, kBlock, /*squares=*/true, {&sum, 1});
  return sum;
}

double DeviceKernels::Run(const ops::Sum& op) {
  const Operation here(*this, "Sum", op.x);
  double sum = 0;
  SumAll({&op.x, 1}, kBlock, /*squares=*/false, {&sum, 1}, op.later);
  return sum;
}

}  // namespace tessera::cuda
