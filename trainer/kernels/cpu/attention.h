#ifndef TESSERA_TRAINER_KERNELS_CPU_ATTENTION_H_
#define TESSERA_TRAINER_KERNELS_CPU_ATTENTION_H_

// What the two passes of attention share. Legend: B batch, T sequence, H query heads, K key/value
// heads, D head size, Q rows of one query block.
//
// A block of Q query rows of one head sees the keys [0, end), where `end` is the end of the block:
// only the lower triangle is computed, and at most Q / 2 scores of a row in vain. All scores of the
// block are held at once ([Q, end] fp32), so that the softmax is the plain one and each product is
// one oneDNN call.

#include <algorithm>
#include <cstdint>

#include "trainer/kernels/backend.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_size;

  int64_t group() const { return heads / kv_heads; }
  int64_t block_rows() const {
    // The scores of a block stay in the second-level cache.
    const int64_t most = sequence <= 2048 ? 128 : 64;
    return std::min(sequence, most);
  }
  int64_t blocks() const { return (sequence + block_rows() - 1) / block_rows(); }
  int64_t begin(int64_t block) const { return block * block_rows(); }
  int64_t end(int64_t block) const { return std::min(sequence, (block + 1) * block_rows()); }
  int64_t rows(int64_t block) const { return end(block) - begin(block); }
  // Of a row of scores, in elements: whole cache lines, and never a multiple of a page.
  int64_t score_stride() const {
    const int64_t lines = (sequence + 31) / 32 * 32;
    return lines % 512 == 0 ? lines + 32 : lines;
  }
};

// CHECKs that the operands fit each other.
AttentionShape AttentionShapeOf(const TensorView& q, const TensorView& k, const TensorView& v);

// The first element of token t of head h in sequence b of a [B,T,H,D] view.
template <typename T>
T* HeadRow(const TensorView& x, int64_t b, int64_t t, int64_t h) {
  return x.as<T>() + b * x.stride(0) + t * x.stride(1) + h * x.stride(2);
}

}  // namespace tessera

#endif  // TESSERA_TRAINER_KERNELS_CPU_ATTENTION_H_
