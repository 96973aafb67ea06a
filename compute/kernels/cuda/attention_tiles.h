#ifndef TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_TILES_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_TILES_H_

// Shared by attention's forward and backward kernels. B batch, T sequence, H query heads, K
// key/value heads, D head size. attention_memory.h describes the blocks.

#include <glog/logging.h>

#include <cstdint>

#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/tensor.h"

namespace tessera::cuda {

static_assert(kOwnRows == kAttentionThreads / simt::kWarpSize * kTileRows);
inline constexpr int kScoreTiles = kOtherRows / kTileColumns;

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
  int64_t batch, sequence, heads, kv_heads, first_sample, first_head;
  int head_size;
  float scale;
  bool dropout;
  DropoutKey key;

  TESSERA_DEVICE int64_t KeyHead(int64_t head) const { return head / (heads / kv_heads); }
  // The index of (query t, key 0) in the stream of the sample.
  TESSERA_DEVICE uint64_t DropoutIndex(int64_t head, int64_t t) const {
    return static_cast<uint64_t>(((first_head + head) * sequence + t) * sequence);
  }
};

inline AttentionShape MakeAttentionShape(const AttentionOptions& options, const TensorView& q,
                                         const TensorView& k) {
  return {.batch = q.dim(0),
          .sequence = q.dim(1),
          .heads = q.dim(2),
          .kv_heads = k.dim(2),
          .first_sample = options.first_sample,
          .first_head = options.first_head,
          .head_size = static_cast<int>(q.dim(3)),
          .scale = static_cast<float>(options.scale),
          .dropout = options.dropout_probability != 0,
          .key = MakeDropoutKey(options.dropout_stream, options.dropout_probability)};
}

// `rows` rows of a head, from position `first` on, in shared memory; zeros beyond T and D.
template <int kHead, typename T>
struct HeadTile {
  static constexpr int kStride = kHead + kRowPadding;

  simt::SharedArray<T> elements;
  int rows;

  // All threads of the block take part.
  TESSERA_DEVICE void Load(const Heads<T>& from, const AttentionShape& shape, int64_t batch,
                           int64_t head, int64_t first) const {
    if (from.packs) return LoadPacks(from, shape, batch, head, first);
    for (int i = simt::ThreadIndex(); i < rows * kHead; i += kAttentionThreads) {
      const int row = i / kHead, d = i % kHead;
      const bool inside = first + row < shape.sequence && d < shape.head_size;
      elements.Set(row * kStride + d,
                   inside ? from.Row(batch, first + row, head)[d] : simt::FromFloat<T>(0.0f));
    }
  }
  TESSERA_DEVICE void LoadPacks(const Heads<T>& from, const AttentionShape& shape, int64_t batch,
                                int64_t head, int64_t first) const {
    constexpr int kPack = simt::SharedArray<T>::kPack, kPacks = kHead / kPack;
    constexpr int kRowsAtOnce = kAttentionThreads / kPacks;
    const int d = simt::ThreadIndex() % kPacks * kPack;
    const T* const start = from.Row(batch, first, head) + d;
#pragma unroll 2  // more would spill registers
    for (int row = simt::ThreadIndex() / kPacks; row < rows; row += kRowsAtOnce) {
      if (first + row < shape.sequence && d < shape.head_size) {
        elements.SetPack(row * kStride + d, start + row * from.sequence_stride);
      } else {
        elements.ClearPack(row * kStride + d);
      }
    }
  }
  // Rows from `first` on, with D as the inner dim of a product.
  TESSERA_DEVICE SharedMatrix<T> OverHead(int first = 0) const {
    return {elements.Slice(first * kStride, (rows - first) * kStride), kStride, 1};
  }
  // The transpose: positions as the inner dim.
  TESSERA_DEVICE SharedMatrix<T> OverRows() const { return {elements, 1, kStride}; }
};

template <int kHead, typename T>
TESSERA_DEVICE HeadTile<kHead, T> TakeTile(simt::SharedMemory& memory, int rows) {
  return {memory.Take<T>(rows * HeadTile<kHead, T>::kStride), rows};
}

// What the calling warp's rows have for each of the 32 others: [16, 32].
template <typename T>
TESSERA_DEVICE SharedMatrix<T> TakeScores(simt::SharedMemory& memory) {
  constexpr int kElements = kTileRows * kScoreStride;
  const simt::SharedArray<T> all = memory.Take<T>(kOwnRows * kScoreStride);
  return {all.Slice(simt::WarpIndex() * kElements, kElements), kScoreStride, 1};
}

template <typename T>
TESSERA_DEVICE void StoreScores(const float (&scores)[kScoreTiles][4], const SharedMatrix<T>& to) {
  for (int n = 0; n < kScoreTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      to.elements.Set(TileRow(i) * to.stride + n * kTileColumns + TileColumn(i),
                      simt::FromFloat<T>(scores[n][i]));
    }
  }
}

// Writes the warp's 16 rows, times a factor for each half of the tile's rows.
template <int kHead, typename T>
TESSERA_DEVICE void StoreHeadRows(const float (&sums)[kHead / kTileColumns][4],
                                  const float (&factors)[2], const AttentionShape& shape,
                                  int64_t batch, int64_t head, int64_t first, const Heads<T>& to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = first + TileRow(2 * half);
    if (t >= shape.sequence) continue;
    T* const row = to.Row(batch, t, head);
#pragma unroll
    for (int n = 0; n < kHead / kTileColumns; ++n) {
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

template <int kHead>
struct HeadSize {};

// Calls body(HeadSize<kHead>()) with the least kHead that holds the head.
template <typename Body>
void WithHeadSize(int head_size, Body body) {
  if (head_size <= 32) return body(HeadSize<32>());
  if (head_size <= 64) return body(HeadSize<64>());
  CHECK_LE(head_size, kMaxHeadSize) << "heads are too large";
  body(HeadSize<128>());
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_ATTENTION_TILES_H_
