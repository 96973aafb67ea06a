#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_TILES_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_TILES_H_

// Shared by attention's forward and backward kernels. B batch, T sequence, H query heads, K
// key/value heads, D head size. attention_memory.h describes the blocks.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/tensor.h"

namespace tessera::cuda {

static_assert(kOwnRows == kAttentionThreads / simt::kWarpSize * kTileRows);

// A tensor [B, T, heads, D], dense in D.
template <typename T>
struct Heads {
  T* data;
  int64_t batch_stride, sequence_stride, head_stride;
  bool packs;  // every row consists of runs of 16 bytes that are aligned to their size

  TESSERA_DEVICE T* Row(int64_t batch, int64_t t, int64_t head) const {
    return data + batch * batch_stride + t * sequence_stride + head * head_stride;
  }
};

template <typename T>
Heads<T> AsHeads(const TensorView& x) {
  CHECK_EQ(x.rank(), 4);
  CHECK(x.dim(3) <= 1 || x.stride(3) == 1)
      << "not dense in the last dim: " << ShapeToString(x.shape());
  constexpr int64_t kPack = simt::SharedArray<T>::kPack;
  const bool packs = reinterpret_cast<uintptr_t>(x.data()) % 16 == 0 && x.dim(3) % kPack == 0 &&
                     x.stride(0) % kPack == 0 && x.stride(1) % kPack == 0 &&
                     x.stride(2) % kPack == 0;
  return {x.as<T>(), x.stride(0), x.stride(1), x.stride(2), packs};
}

struct AttentionShape {
  int batch, sequence, heads, kv_heads, head_size;  // positions have 32 bits, elements 64
  float scale, scale_log2;                          // of scores, for exp() and for exp2()
  int64_t first_sample, first_head;
  DropoutKey key;

  TESSERA_DEVICE int KeyHead(int head) const { return head / (heads / kv_heads); }
  // Returns the index of (query t, key 0) in the stream of the sample.
  TESSERA_DEVICE uint64_t DropoutIndex(int head, int t) const {
    return static_cast<uint64_t>(((first_head + head) * sequence + t) * sequence);
  }
  TESSERA_HOST_DEVICE int64_t blocks() const { return simt::BlocksOf(sequence, kOwnRows); }
};

// [B, H, T, 2]: log_sum_exp[t] log2(e), and delta[t]. T is rounded up to blocks; a query beyond T
// has infinity and 0, which make its P and dS 0.
struct QueryStatistics {
  float* data;

  TESSERA_DEVICE float* Of(const AttentionShape& shape, int batch, int head, int t) const {
    const int64_t row = int64_t{batch} * shape.heads + head;
    return data + (row * shape.blocks() * kOwnRows + t) * 2;
  }
};

inline AttentionShape MakeAttentionShape(const AttentionOptions& options, const TensorView& q,
                                         const TensorView& k) {
  // The last tile may begin up to a block behind the last position.
  CHECK_LE(q.dim(1), std::numeric_limits<int>::max() - 3 * kOwnRows) << "too many positions";
  CHECK_GT(options.scale, 0);
  return {.batch = static_cast<int>(q.dim(0)),
          .sequence = static_cast<int>(q.dim(1)),
          .heads = static_cast<int>(q.dim(2)),
          .kv_heads = static_cast<int>(k.dim(2)),
          .head_size = static_cast<int>(q.dim(3)),
          .scale = static_cast<float>(options.scale),
          .scale_log2 = static_cast<float>(options.scale * std::numbers::log2e),
          .first_sample = options.first_sample,
          .first_head = options.first_head,
          .key = MakeDropoutKey(options.dropout_stream, options.dropout_probability)};
}

// The case for which a kernel is compiled.
template <AttentionPass kPassOfKernel, int kHeadSize, bool kDropoutIsOn, typename T>
struct AttentionKind {
  static constexpr AttentionPass kPass = kPassOfKernel;
  static constexpr int kHead = kHeadSize;  // padded
  static constexpr bool kDropout = kDropoutIsOn;
  static constexpr bool kAtOnce = kPass == AttentionPass::kBackwardAtOnce;
  static constexpr int kThreads = AttentionThreads(kPass, kHead);
  static constexpr int kOwn = AttentionOwnRows(kPass);
  static constexpr int kTiles = kOwn / kTileRows * simt::kWarpSize / kThreads;  // own, of a warp
  static constexpr int kStages = AttentionStages(sizeof(T));
  static constexpr int kRows = AttentionTileRows(kPass, kHead, sizeof(T));
  static constexpr int kScoreTiles = kRows / kTileColumns, kHeadTiles = kHead / kTileColumns;
  static constexpr int64_t kSharedBytes = AttentionBytes(kPass, kHead, sizeof(T));
  static constexpr int kBlocks = AttentionBlocks(kPass, kHead, sizeof(T), kDropout);
  // Whether the block's own rows stay in registers.
  static constexpr bool kResident =
      kPass == AttentionPass::kForward || (!kAtOnce && kHead < kMaxHeadSize);
  static constexpr bool kStaged = OwnRowsAreStaged(kPass, kHead, sizeof(T));
  using Element = T;
  using Own = SharedTile<kOwn, kHead, T>;
  using OwnRows = LeftRows<kHead, T, kResident, kTiles>;
  using Other = SharedTile<kRows, kHead, T>;
  using Scores = float[kTiles * kScoreTiles][4];
  using Pairs = uint32_t[kTiles * kScoreTiles][2];
  using Sums = float[kTiles * kHeadTiles][4];
};

// The tiles of the other side, two tensors in each stage, and the block's own.
template <typename Kind>
class BlockTiles {
 public:
  TESSERA_DEVICE explicit BlockTiles(simt::SharedMemory& memory)
      : memory_(memory),
        others_(memory.Take<Element>(2 * Kind::kStages * Kind::Other::kElements)) {}
  TESSERA_DEVICE typename Kind::Other Get(int stage, int tensor) const {
    constexpr int kElements = Kind::Other::kElements;
    return {others_.Slice((2 * stage + tensor) * kElements, kElements)};
  }
  // Takes tensors 0 and 1, in order.
  TESSERA_DEVICE typename Kind::Own TakeOwn(int tensor) const {
    if constexpr (Kind::kStaged) {
      return Get(1, tensor);
    } else {
      return {memory_.Take<Element>(Kind::Own::kElements)};
    }
  }

 private:
  using Element = typename Kind::Element;

  simt::SharedMemory& memory_;
  const simt::SharedArray<Element> others_;
};

// Calls compute(tile, stage) for each tile, and load() for each tile but the first, which is being
// copied already. With two stages, a tile is loaded while the one before is computed.
template <int kStages, typename Load, typename Compute>
TESSERA_DEVICE void ForTiles(int tiles, Load load, Compute compute) {
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    simt::WaitForCopies();
    simt::SyncThreads();
    if (kStages == 2 && tile + 1 < tiles) load(tile + 1, (tile + 1) % 2);
    compute(tile, tile % kStages);
    if (kStages == 1 && tile + 1 < tiles) {
      simt::SyncThreads();
      load(tile + 1, 0);
    }
  }
}

// Begins to copy rows of tensors of one head from position `first` on, with zeros beyond T and D.
// All threads of the block take part. At once, rows must be aligned.
template <typename Kind, int kRows, int kHead, typename T, int kTensors>
TESSERA_DEVICE void LoadTiles(const Heads<T> (&from)[kTensors], const AttentionShape& shape,
                              int batch, int head, int first,
                              const SharedTile<kRows, kHead, T> (&to)[kTensors]) {
  constexpr int kPack = simt::SharedArray<T>::kPack;
  if (!Kind::kAtOnce && (!from[0].packs || !from[kTensors - 1].packs)) {
#pragma unroll 1
    for (int i = simt::ThreadIndex(); i < kRows * kHead; i += Kind::kThreads) {
      const int row = i / kHead, d = i % kHead;
      const bool inside = first + row < shape.sequence && d < shape.head_size;
#pragma unroll
      for (int n = 0; n < kTensors; ++n) {
        to[n].elements.Set(row * to[n].kStride + d,
                           inside ? from[n].Row(batch, first + row, head)[d] : T());
      }
    }
    return;
  }
  constexpr int kRowsAtOnce = Kind::kThreads * kPack / kHead;
  static_assert(kRows % kRowsAtOnce == 0 && kTensors <= 2);
  const int d = simt::ThreadIndex() % (kHead / kPack) * kPack;
  const int row = simt::ThreadIndex() / (kHead / kPack);
  const int rows_left = d < shape.head_size ? shape.sequence - first : 0;
#pragma unroll
  for (int n = 0; n < kTensors; ++n) {
    const T* source = from[n].Row(batch, first + row, head) + d;
#pragma unroll
    for (int i = 0; i < kRows; i += kRowsAtOnce, source += kRowsAtOnce * from[n].sequence_stride) {
      to[n].elements.CopyPackAsync((row + i) * to[n].kStride + d, source, row + i < rows_left);
    }
  }
}

// Sets the scores of keys that their query does not see to -infinity. `distance` is how far the
// first query is behind the first key; queries are rows or columns. Tiles that are seen whole are
// left alone. Scores of 16 rows follow those of the 16 rows before.
template <bool kRowsAreQueries, int kRowTiles = 1, int kTiles>
TESSERA_DEVICE void HideUnseen(int distance, float (&scores)[kTiles][4]) {
  constexpr int kAcross = kTiles / kRowTiles;
  if (distance >= (kRowsAreQueries ? kAcross * kTileColumns : kRowTiles * kTileRows) - 1) return;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n / kAcross * kTileRows + TileRow(i);
      const int behind = row - (n % kAcross * kTileColumns + TileColumn(i));
      if (distance + (kRowsAreQueries ? behind : -behind) < 0) scores[n][i] = -INFINITY;
    }
  }
}

// Transposes the words of four adjacent lanes: word j of lane i becomes word i of lane j.
TESSERA_DEVICE void TransposeLanes(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = (simt::Lane() & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t own = words[i], next = words[i + distance];
      const uint32_t other = simt::ShuffleXor(simt::kAllLanes, upper ? own : next, distance);
      words[i] = upper ? other : own;
      words[i + distance] = upper ? next : other;
    }
  }
}

// Writes `columns` columns of a row of each lane, in runs of 16 bytes: a lane has two columns of
// each tile, and stores the eight of every fourth tile. All lanes take part.
template <int kTiles>
TESSERA_DEVICE void StoreRuns(const float (&sums)[kTiles][4], int half, float factor, int columns,
                              BFloat16* row) {
  static_assert(kTiles % 4 == 0);
#pragma unroll
  for (int n = 0; n < kTiles; n += 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] =
          simt::BFloat16Pair(sums[n + i][2 * half] * factor, sums[n + i][2 * half + 1] * factor);
    }
    TransposeLanes(words);
    const int d = (n + simt::Lane() % 4) * kTileColumns;
    const simt::Stored<BFloat16, kTileColumns> run = {words[0], words[1], words[2], words[3]};
    if (d < columns) simt::StoreStored(run, row + d);
  }
}

// Writes the warp's 16 rows, multiplied by a factor for each half of the tile's rows. kRuns: in
// runs of 16 bytes where the tensor allows it, which change no bit.
template <bool kRuns = true, int kTiles, typename T>
TESSERA_DEVICE void StoreHeadRows(const float (&sums)[kTiles][4], const float (&factors)[2],
                                  const AttentionShape& shape, int batch, int head, int first,
                                  const Heads<T>& to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = first + TileRow(2 * half);
    T* const row = to.Row(batch, t, head);
    if constexpr (kRuns && sizeof(T) == sizeof(BFloat16)) {
      if (to.packs) {  // lanes of all rows take part
        StoreRuns(sums, half, factors[half], t < shape.sequence ? shape.head_size : 0, row);
        continue;
      }
    }
    if (t >= shape.sequence) continue;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int d = n * kTileColumns + TileColumn(2 * half);
      const float pair[2] = {sums[n][2 * half] * factors[half],
                             sums[n][2 * half + 1] * factors[half]};
      if (to.packs) {
        if (d < shape.head_size) simt::StorePack(pair, row + d);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (d + i < shape.head_size) row[d + i] = simt::FromFloat<T>(pair[i]);
      }
    }
  }
}

// Writes 16 rows for each of the warp's own tiles. With several of them, a kernel has no registers
// left for runs.
template <int kOwnTiles, int kTiles, typename T>
TESSERA_DEVICE void StoreOwnRows(const float (&sums)[kTiles][4], float factor,
                                 const AttentionShape& shape, int batch, int head, int first,
                                 const Heads<T>& to) {
  constexpr int kAcross = kTiles / kOwnTiles;
#pragma unroll
  for (int i = 0; i < kOwnTiles; ++i) {
    const auto& tile = reinterpret_cast<const float(&)[kAcross][4]>(sums[i * kAcross]);
    StoreHeadRows<kOwnTiles == 1>(tile, {factor, factor}, shape, batch, head, first + i * kTileRows,
                                  to);
  }
}

// Calls body.operator()<Kind>() with the least padded head that holds the head.
template <AttentionPass kPass, typename T, typename Body>
void WithAttentionKind(const AttentionShape& shape, Body body) {
  CHECK_LE(shape.head_size, kMaxHeadSize) << "heads are too large";
  const auto with_dropout = [&]<bool kDropout>() {
    if (shape.head_size <= 32) {
      body.template operator()<AttentionKind<kPass, 32, kDropout, T>>();
    } else if (shape.head_size <= 64) {
      body.template operator()<AttentionKind<kPass, 64, kDropout, T>>();
    } else {
      body.template operator()<AttentionKind<kPass, kMaxHeadSize, kDropout, T>>();
    }
  };
  shape.key.threshold != 0 ? with_dropout.template operator()<true>()
                           : with_dropout.template operator()<false>();
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_TILES_H_
