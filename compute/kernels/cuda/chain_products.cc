#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Products in fp32 with the bits of processors in EXACT numerics (cpu/gemm/gemm.h). An element is a
// chain of fused multiply-adds over ascending indices. A block computes a tile of c, and a thread
// 4 x 4 or 8 x 8 of its elements. Each operand that a thread reads serves 4 or 8 multiply-adds.
// Operands pass through shared memory in slices along the chain. Meanwhile the next slice is loaded
// into registers.
namespace {

constexpr int kRowThreads = 16, kThreads = kRowThreads * kRowThreads;
constexpr int kPart = 4;  // adjacent elements of a thread, which it reads as a pack

// Returns the rows, and columns, of a block's tile.
constexpr int TileOf(int per_thread) { return kRowThreads * per_thread; }

// The rows of a, or the columns of b.
struct Chains {
  const float* data;
  int64_t count, depth;
  int64_t stride, depth_stride;
};

// Returns the row of element i of those of place `own`: parts of adjacent ones, so that the sixteen
// places read adjacent packs.
template <int kPerThread>
TESSERA_DEVICE int Place(int own, int i) {
  return (i / kPart * kRowThreads + own) * kPart + i % kPart;
}

// A slice of the chains of a block, through which the tile's operands pass. Each thread brings
// every kThreads-th element; adjacent threads have adjacent ones in memory.
template <int kPerThread>
class Slice {
 public:
  TESSERA_DEVICE Slice(simt::SharedMemory& memory, const Chains& chains, int64_t first)
      : shared_(memory.Take<float>(kLength * kStride)) {
    const bool dense = chains.depth_stride == 1;
    const int thread = simt::ThreadIndex();
    i_ = dense ? thread / kLength : thread % kTile;
    k_ = dense ? thread % kLength : thread / kTile;
    i_step_ = dense ? kThreads / kLength : 0;
    k_step_ = dense ? 0 : kThreads / kTile;
    count_ = chains.count - first < kTile ? static_cast<int>(chains.count - first) : kTile;
    from_ = chains.data + (first + i_) * chains.stride + k_ * chains.depth_stride;
    from_step_ = i_step_ * chains.stride + k_step_ * chains.depth_stride;
    next_slice_ = kLength * chains.depth_stride;
  }
  static constexpr int kLength = 64 / kPerThread;
  static constexpr int64_t kBytes = kLength * (TileOf(kPerThread) + 4) * sizeof(float);

  // Reads the thread's elements of the next slice, which has `left` of each chain; those beyond the
  // end are zeros.
  TESSERA_DEVICE void Fetch(int64_t left) {
    for (int e = 0; e < kElements; ++e) {
      const bool inside = i_ + e * i_step_ < count_ && k_ + e * k_step_ < left;
      next_[e] = inside ? from_[e * from_step_] : 0.0f;
    }
    from_ += next_slice_;
  }
  // Makes what was fetched the slice, between barriers.
  TESSERA_DEVICE void Store() const {
    for (int e = 0; e < kElements; ++e) {
      shared_.Set((k_ + e * k_step_) * kStride + i_ + e * i_step_, next_[e]);
    }
  }
  // Reads element k of the chains of place `own` of the tile's sixteen.
  TESSERA_DEVICE void Get(int k, int own, float (&to)[kPerThread]) const {
    for (int part = 0; part < kPerThread / kPart; ++part) {
      float pack[kPart];
      shared_.GetPack(k * kStride + Place<kPerThread>(own, part * kPart), pack);
      for (int i = 0; i < kPart; ++i) to[part * kPart + i] = pack[i];
    }
  }

 private:
  static constexpr int kTile = TileOf(kPerThread), kStride = kTile + 4;  // other banks
  static constexpr int kElements = kTile * kLength / kThreads;

  const simt::SharedArray<float> shared_;
  int i_, k_, i_step_, k_step_, count_;
  const float* from_;
  int64_t from_step_, next_slice_;
  float next_[kElements];
};

template <int kPerThread>
TESSERA_KERNEL void TESSERA_BOUNDS(kThreads, 1)
    MultiplyChains(Chains a, Chains b, Rows<float> c, bool accumulate, const float* bias) {
  constexpr int kTile = TileOf(kPerThread), kSlice = Slice<kPerThread>::kLength;
  simt::SharedMemory memory;
  const int64_t first_row = simt::BlockX() * kTile, first_column = simt::BlockY() * kTile;
  Slice<kPerThread> rows(memory, a, first_row), columns(memory, b, first_column);
  const int own_row = simt::ThreadIndex() / kRowThreads;
  const int own_column = simt::ThreadIndex() % kRowThreads;
  float sums[kPerThread][kPerThread] = {};
  const auto each_element = [&](const auto& body) {
    for (int i = 0; i < kPerThread; ++i) {
      for (int j = 0; j < kPerThread; ++j) {
        const int64_t r = first_row + Place<kPerThread>(own_row, i);
        const int64_t s = first_column + Place<kPerThread>(own_column, j);
        if (r < c.rows && s < c.columns) body(sums[i][j], c.data + r * c.stride + s, s);
      }
    }
  };
  if (accumulate) each_element([](float& sum, float* at, int64_t) { sum = *at; });
  rows.Fetch(a.depth);
  columns.Fetch(a.depth);
  for (int64_t begin = 0; begin < a.depth; begin += kSlice) {
    rows.Store();
    columns.Store();
    simt::SyncThreads();
    const int64_t left = a.depth - begin;
    rows.Fetch(left - kSlice);
    columns.Fetch(left - kSlice);
    const int depth = left < kSlice ? static_cast<int>(left) : kSlice;
#pragma unroll 2
    for (int k = 0; k < depth; ++k) {
      float of_row[kPerThread], of_column[kPerThread];
      rows.Get(k, own_row, of_row);
      columns.Get(k, own_column, of_column);
      for (int i = 0; i < kPerThread; ++i) {
        for (int j = 0; j < kPerThread; ++j) sums[i][j] = fmaf(of_row[i], of_column[j], sums[i][j]);
      }
    }
    simt::SyncThreads();
  }
  each_element(
      [bias](float& sum, float* at, int64_t s) { *at = bias == nullptr ? sum : sum + bias[s]; });
}

// Chooses tiles: large ones where they suffice for the multiprocessors of a device. No bit depends
// on it.
constexpr int64_t kEnoughTiles = 128;

}  // namespace

void DeviceKernels::RunInChains(const ops::MatMul& op) {
  const Operation here(*this, "MatMul", op.a, op.b, op.c);
  const Rows<float> c = AsRows<float>(op.c);
  const int64_t depth = op.a.dim(1);
  const Chains a = {op.a.as<float>(), c.rows, depth, op.a.stride(0), op.a.stride(1)};
  const Chains b = {op.b.as<float>(), c.columns, depth, op.b.stride(1), op.b.stride(0)};
  const auto launch = [&]<int kPerThread>(std::integral_constant<int, kPerThread>) {
    constexpr int kTile = TileOf(kPerThread);
    simt::Launch<MultiplyChains<kPerThread>>(
        {simt::BlocksOf(c.rows, kTile), simt::BlocksOf(c.columns, kTile)}, kThreads,
        2 * Slice<kPerThread>::kBytes, stream(), a, b, c, op.accumulate,
        op.bias.empty() ? nullptr : op.bias.as<float>());
  };
  constexpr int kLarge = 8;
  const int64_t tiles =
      simt::BlocksOf(c.rows, TileOf(kLarge)) * simt::BlocksOf(c.columns, TileOf(kLarge));
  if (tiles >= kEnoughTiles) return launch(std::integral_constant<int, kLarge>());
  launch(std::integral_constant<int, 4>());
}

}  // namespace tessera::cuda
