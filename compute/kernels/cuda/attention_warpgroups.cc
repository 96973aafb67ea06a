// Attention's forward pass on the tensor cores of compute capability 9.0, as attention_forward.cc
// computes it on those of all others: Shah et al., "FlashAttention-3" (2024), without its
// asynchronous copies by TMA and its overlap within a warpgroup.
//
// A block owns 128 queries of one head, 64 for each of two warpgroups, and iterates over tiles of
// keys and values: one is copied while the other is multiplied. Scores, weights and sums are in
// registers. Two blocks share a multiprocessor, so that the exponentials of one warpgroup run while
// three others multiply.

#include "compute/kernels/cuda/attention_warpgroups.h"

#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/attention_softmax.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/warpgroup.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

using Bf16Heads = Heads<BFloat16>;

template <int kHeadSize>
struct WarpgroupKind {
  static constexpr int kHead = kHeadSize;
  static constexpr int kThreads = kWarpgroupsOfBlock * kWarpgroupThreads;
  static constexpr int kOwn = kWarpgroupsOfBlock * kWarpgroupRows;
  static constexpr int kRows = WarpgroupTileRows(kHead);
  static constexpr int kBlocks = 2;
  static constexpr int kStages = AttentionStages(sizeof(BFloat16));
  static constexpr int64_t kSharedBytes = WarpgroupAttentionBytes(kHead);
  using Own = SwizzledTile<kOwn, kHead>;
  using Other = SwizzledTile<kRows, kHead>;
  using Scores = float[kRows / kTileColumns][4];
  using Weights = uint32_t[kRows / kTileInner][4];
  using Sums = float[kHead / kTileColumns][4];
};

// A thread's part of the rows of tensors of one head, tile after tile: a run of 16 bytes of some
// rows. The distance of rows is the same in all tensors, which saves registers.
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
  static constexpr int kRowsAtOnce = Kind::kThreads / kRunsOfRow;

  static TESSERA_DEVICE int Row() { return simt::ThreadIndex() / kRunsOfRow; }
  static TESSERA_DEVICE int Column() { return simt::ThreadIndex() % kRunsOfRow * kRun; }

  const int64_t stride_;
  int64_t offset_;
};

// Turns weights, as accumulators, into the left operand of a product.
template <typename Kind>
TESSERA_DEVICE void PackWeights(const typename Kind::Scores& scores,
                                typename Kind::Weights& weights) {
#pragma unroll
  for (int k = 0; k < Kind::kRows / kTileInner; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = PairOf(scores[2 * k + i / 2], i % 2);
  }
}

// One block for each 128 queries, head and sample; the last ones, which see the most keys, first.
template <typename Kind>
TESSERA_KERNEL void TESSERA_BOUNDS(Kind::kThreads, Kind::kBlocks)
    AttentionForwardWarpgroups(AttentionShape shape, Bf16Heads q, Bf16Heads k, Bf16Heads v,
                               Bf16Heads out, float* log_sum_exp) {
  shape.head_size = Kind::kHead;  // known to the compiler
  out.packs = true;
  const int head = simt::BlockY(), batch = simt::BlockZ(), kv_head = shape.KeyHead(head);
  const int blocks = simt::BlocksOf(shape.sequence, Kind::kOwn);
  const int block_query = (blocks - 1 - static_cast<int>(simt::BlockX())) * Kind::kOwn;
  // The same in all lanes, which descriptors must be.
  const int warp = simt::ShuffleFrom(simt::kAllLanes, simt::WarpIndex(), 0);
  const int own = warp / 4 * kWarpgroupRows;
  const int first_query = block_query + warp * kTileRows;
  simt::SharedMemory memory;
  memory.AlignTo(kSwizzleAlignment);
  const auto take = [&](int count) { return memory.Take<BFloat16>(count); };
  const typename Kind::Own queries = {take(Kind::Own::kElements)};
  const auto others = take(2 * Kind::kStages * Kind::Other::kElements);
  const auto tile_of = [&](int stage, int tensor) {
    constexpr int kElements = Kind::Other::kElements;
    return typename Kind::Other{others.Slice((2 * stage + tensor) * kElements, kElements)};
  };
  RowLoader<Kind>(q.sequence_stride)
      .Load(shape.sequence - block_query, {q.Row(batch, block_query, head)}, {queries});
  RowLoader<Kind> loader(k.sequence_stride);
  const auto load = [&](int tile) {
    const int stage = tile % Kind::kStages;
    loader.Load(shape.sequence - tile * Kind::kRows,
                {k.Row(batch, 0, kv_head), v.Row(batch, 0, kv_head)},
                {tile_of(stage, 0), tile_of(stage, 1)});
  };
  load(0);

  typename Kind::Sums sums = {};
  RowState state;
  const int key_end = simt::Min(block_query + Kind::kOwn, shape.sequence);
  const int tiles = simt::BlocksOf(key_end, Kind::kRows);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % Kind::kStages, first_key = tile * Kind::kRows;
    PublishCopies();
    simt::SyncThreads();
    if (tile + 1 < tiles) load(tile + 1);
    if (first_key >= block_query + own + kWarpgroupRows) continue;  // the warpgroup sees none
    typename Kind::Scores scores;
    BeginProducts(scores);
    QueueProductByRows(queries, own, tile_of(stage, 0), scores);
    FinishProducts(scores);
    HideUnseen</*kRowsAreQueries=*/true>(first_query - first_key, scores);
    float corrections[2];
    UpdateSoftmax(shape.scale_log2, scores, state, corrections);
    CorrectSums(corrections, sums);
    typename Kind::Weights weights;
    PackWeights<Kind>(scores, weights);
    BeginProducts(sums, weights);
    QueueProductByColumns(weights, tile_of(stage, 1), sums);
    FinishProducts(sums, weights);
  }
  StoreAttention(sums, state, shape, batch, head, first_query, out, log_sum_exp);
}

}  // namespace

bool CanAttendByWarpgroups(const ops::AttentionForward& op) {
  const auto packs = [](const TensorView& x) { return AsHeads<BFloat16>(x).packs; };
  const int64_t head = op.q.dim(3);
  return op.q.dtype() == DType::kBF16 && op.options.dropout_probability == 0 &&
         (head == kMaxHeadSize / 2 || head == kMaxHeadSize) && packs(op.q) && packs(op.k) &&
         packs(op.v) && packs(op.out) && op.k.stride(1) == op.v.stride(1);
}

void LaunchAttentionByWarpgroups(simt::Stream stream, const AttentionShape& shape,
                                 const ops::AttentionForward& op) {
  const auto launch = [&]<int kHead>() {
    using Kind = WarpgroupKind<kHead>;
    simt::Launch<AttentionForwardWarpgroups<Kind>>(
        {simt::BlocksOf(shape.sequence, Kind::kOwn), shape.heads, shape.batch}, Kind::kThreads,
        Kind::kSharedBytes, stream, shape, AsHeads<BFloat16>(op.q), AsHeads<BFloat16>(op.k),
        AsHeads<BFloat16>(op.v), AsHeads<BFloat16>(op.out), op.log_sum_exp.as<float>());
  };
  shape.head_size == kMaxHeadSize ? launch.template operator()<kMaxHeadSize>()
                                  : launch.template operator()<kMaxHeadSize / 2>();
}

}  // namespace tessera::cuda
