#include <cmath>
#include <cstdint>
#include <type_traits>

#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

// Products in fp32 with the bits of processors in EXACT numerics (cpu/gemm/gemm.h): an element is a
// chain of fused multiply-adds over ascending indices. A block computes a tile of c, a thread 4 x 4
// or 8 x 8 elements of it, which read a fourth or an eighth as many operands as they have
// multiply-adds; the operands pass through shared memory in slices along the chain, the next of
// which is on its way in registers.
namespace {

constexpr int kSlice = 16, kRowThreads = 16, kThreads = kRowThreads * kRowThreads;
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

// A slice of the chains of a block, through which the tile's operands pass.
template <int kPerThread>
class Slice {
 public:
  TESSERA_DEVICE Slice(simt::SharedMemory& memory, const Chains& chains, int64_t first)
      : shared_(memory.Take<float>(kSlice * kStride)), chains_(chains), first_(first) {}
  static constexpr int64_t kBytes = kSlice * (TileOf(kPerThread) + 4) * sizeof(float);

  // Reads the thread's elements of the slice that begins at `begin`; those beyond the end are zeros.
  TESSERA_DEVICE void Fetch(int64_t begin) {
    for (int e = 0; e < kElements; ++e) {
      int i, k;
      Find(e, &i, &k);
      const bool inside = first_ + i < chains_.count && begin + k < chains_.depth;
      next_[e] =
          inside ? chains_.data[(first_ + i) * chains_.stride + (begin + k) * chains_.depth_stride]
                 : 0.0f;
    }
  }
  // Makes what was fetched the slice, between barriers.
  TESSERA_DEVICE void Store() const {
    for (int e = 0; e < kElements; ++e) {
      int i, k;
      Find(e, &i, &k);
      shared_.Set(k * kStride + i, next_[e]);
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
  static constexpr int kElements = kTile * kSlice / kThreads;

  // Finds an element of the slice; adjacent threads have adjacent ones in memory.
  TESSERA_DEVICE void Find(int e, int* i, int* k) const {
    const int at = e * kThreads + simt::ThreadIndex();
    const bool dense = chains_.depth_stride == 1;
    *i = dense ? at / kSlice : at % kTile;
    *k = dense ? at % kSlice : at / kTile;
  }

  const simt::SharedArray<float> shared_;
  const Chains chains_;
  const int64_t first_;
  float next_[kElements];
};

template <int kPerThread>
TESSERA_KERNEL void TESSERA_BOUNDS(kThreads, 2)
    MultiplyChains(Chains a, Chains b, Rows<float> c, bool accumulate, const float* bias) {
  constexpr int kTile = TileOf(kPerThread);
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
  rows.Fetch(0);
  columns.Fetch(0);
  for (int64_t begin = 0; begin < a.depth; begin += kSlice) {
    rows.Store();
    columns.Store();
    simt::SyncThreads();
    rows.Fetch(begin + kSlice);
    columns.Fetch(begin + kSlice);
    const int depth = a.depth - begin < kSlice ? static_cast<int>(a.depth - begin) : kSlice;
    for (int k = 0; k < depth; ++k) {
      float left[kPerThread], right[kPerThread];
      rows.Get(k, own_row, left);
      columns.Get(k, own_column, right);
      for (int i = 0; i < kPerThread; ++i) {
        for (int j = 0; j < kPerThread; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
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
