#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUP_TILES_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUP_TILES_H_

// Shared by attention's kernels of warpgroups. A block owns 64 positions of one head for each of its
// warpgroups, and iterates over tiles of the other side: one is copied while the other is
// multiplied.

#include <cstdint>

#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/warpgroup.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

using Bf16Heads = Heads<BFloat16>;

template <AttentionPass kPassOfKernel, int kHeadSize>
struct WarpgroupKind {
  static constexpr AttentionPass kPass = kPassOfKernel;
  static constexpr int kHead = kHeadSize;
  static constexpr WarpgroupShape kShape = WarpgroupShapeOf(kPass, kHead);
  static constexpr int kThreads = kShape.warpgroups * kWarpgroupThreads;
  static constexpr int kOwn = kShape.warpgroups * kWarpgroupRows;
  static constexpr int kOwnTensors = WarpgroupOwnTensors(kPass);
  static constexpr int kRows = kShape.rows;
  static constexpr int kBlocks = kShape.blocks;
  static constexpr int kStages = AttentionStages(sizeof(BFloat16));
  static constexpr int64_t kSharedBytes = WarpgroupAttentionBytes(kPass, kHead);
  using Own = SwizzledTile<kOwn, kHead>;
  using Other = SwizzledTile<kRows, kHead>;
  using Scores = float[kRows / kTileColumns][4];
  using Weights = uint32_t[kRows / kTileInner][4];
  using Sums = float[kHead / kTileColumns][4];
};

// The block's own rows, and two tensors of the other side in each stage.
template <typename Kind>
class WarpgroupTiles {
 public:
  TESSERA_DEVICE explicit WarpgroupTiles(simt::SharedMemory& memory) : all_(Take(memory)) {}
  TESSERA_DEVICE typename Kind::Own Own(int tensor) const {
    return {all_.Slice(tensor * Kind::Own::kElements, Kind::Own::kElements)};
  }
  TESSERA_DEVICE typename Kind::Other Get(int stage, int tensor) const {
    constexpr int kElements = Kind::Other::kElements;
    return {all_.Slice(kOwnElements + (2 * stage + tensor) * kElements, kElements)};
  }

 private:
  static constexpr int kOwnElements = Kind::kOwnTensors * Kind::Own::kElements;

  static TESSERA_DEVICE simt::SharedArray<BFloat16> Take(simt::SharedMemory& memory) {
    memory.AlignTo(kSwizzleAlignment);
    return memory.Take<BFloat16>(kOwnElements + 2 * Kind::kStages * Kind::Other::kElements);
  }

  const simt::SharedArray<BFloat16> all_;
};

// A thread's part of the rows of tensors of one head, tile after tile: a run of 16 bytes of some
// rows. The distance of rows is the same in all tensors, which saves registers. Two warpgroups copy,
// because the rows of three would not divide tiles.
template <typename Kind>
class RowLoader {
 public:
  TESSERA_DEVICE explicit RowLoader(int64_t stride)
      : stride_(stride), offset_(Row() * stride + Column()) {}

  // Begins to copy the next rows, of which `left` exist, and zeros behind those. `from` has the
  // first rows of all.
  template <int kRows, int kTensors>
  TESSERA_DEVICE void Load(int left, const BFloat16* const (&from)[kTensors],
                           const SwizzledTile<kRows, Kind::kHead> (&to)[kTensors]) {
    static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    if (Kind::kThreads > kCopyingThreads && simt::ThreadIndex() >= kCopyingThreads) return;
    const int place = to[0].At(Row(), Column());
#pragma unroll
    for (int i = 0; i < kRows; i += kRowsAtOnce, offset_ += kRowsAtOnce * stride_) {
#pragma unroll
      for (int n = 0; n < kTensors; ++n) {
        to[n].elements.CopyPackAsync(place + i * to[0].kPanelColumns, from[n] + offset_,
                                     Row() + i < left);
      }
    }
  }

 private:
  static constexpr int kRun = simt::SharedArray<BFloat16>::kPack;
  static constexpr int kRunsOfRow = Kind::kHead / kRun;
  static constexpr int kCopyingThreads = 2 * kWarpgroupThreads;
  static constexpr int kRowsAtOnce = kCopyingThreads / kRunsOfRow;

  static TESSERA_DEVICE int Row() { return simt::ThreadIndex() / kRunsOfRow; }
  static TESSERA_DEVICE int Column() { return simt::ThreadIndex() % kRunsOfRow * kRun; }

  const int64_t stride_;
  int64_t offset_;
};

// Returns the warp's index as the same number in all lanes, which descriptors must be.
TESSERA_DEVICE int UniformWarpIndex() {
  return simt::ShuffleFrom(simt::kAllLanes, simt::WarpIndex(), 0);
}

// Turns weights, as accumulators, into the left operand of a product.
template <int kTiles>
TESSERA_DEVICE void PackWeights(const float (&scores)[kTiles][4],
                                uint32_t (&weights)[kTiles / 2][4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = PairOf(scores[2 * k + i / 2], i % 2);
  }
}

// Returns whether an operation of attention is one for warpgroups: see attention_warpgroups.h.
template <typename Op, typename... Others>
bool FitsWarpgroups(const Op& op, const Others&... others) {
  const auto packs = [](const TensorView& x) { return AsHeads<BFloat16>(x).packs; };
  const int64_t head = op.q.dim(3);
  return op.q.dtype() == DType::kBF16 && op.options.dropout_probability == 0 &&
         (head == kMaxHeadSize / 2 || head == kMaxHeadSize) && packs(op.q) && packs(op.k) &&
         packs(op.v) && (packs(others) && ...) && op.k.stride(1) == op.v.stride(1);
}

// Calls body.operator()<kHead>() with the size of the heads.
template <typename Body>
void WithWarpgroupHead(const AttentionShape& shape, Body body) {
  shape.head_size == kMaxHeadSize ? body.template operator()<kMaxHeadSize>()
                                  : body.template operator()<kMaxHeadSize / 2>();
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_WARPGROUP_TILES_H_
