#ifndef TESSERA_COMPUTE_KERNELS_CPU_ATTENTION_H_
#define TESSERA_COMPUTE_KERNELS_CPU_ATTENTION_H_

// Shared by the two passes of attention. Legend: B batch, T sequence, H query heads, K key/value
// heads, D head size, Q rows of one query block.
//
// A block of Q query rows of one head sees the keys [0, end), where `end` is the end of the block.
// So only the lower triangle is computed, and on average at most Q / 2 scores of a row are wasted.
// Keys that a row does not see count as zero and come after those that it sees. Products are chains
// over ascending keys, so a row's result depends on its own keys alone, not on the other rows.
//
// The queries may be only the last ones of the sequence: those of new tokens, if the keys and
// values of the earlier tokens are kept.
//
// Every operand of a product is first copied so that its rows are contiguous: oneDNN then runs bf16
// products at twice the rate, and fp32 ones a tenth faster.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/checked_math.h"
#include "tensor/tensor.h"

namespace tessera {

struct AttentionShape {
  int64_t batch, sequence, heads, kv_heads, head_size;  // sequence: of the queries
  int64_t keys;

  int64_t group() const { return heads / kv_heads; }
  int64_t block_rows() const {
    // The scores of a block fit into the second-level cache.
    const int64_t most = sequence <= 2048 ? 128 : 64;
    return std::min(sequence, most);
  }
  int64_t blocks() const { return CeilDivide(sequence, block_rows()); }
  int64_t begin(int64_t block) const { return block * block_rows(); }
  int64_t end(int64_t block) const { return std::min(sequence, (block + 1) * block_rows()); }
  int64_t rows(int64_t block) const { return end(block) - begin(block); }
  // Returns the position of the first query in the sequence of the keys.
  int64_t first_position() const { return keys - sequence; }
  int64_t end_key(int64_t block) const { return first_position() + end(block); }
};

inline AttentionShape AttentionShapeOf(const TensorView& q, const TensorView& k) {
  return {q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3), k.dim(1)};
}

// Returns the address of the first element of token t of head h in sequence b of a [B,T,H,D] view.
template <typename T>
T* HeadRow(const TensorView& x, int64_t b, int64_t t, int64_t h) {
  return x.as<T>() + b * x.stride(0) + t * x.stride(1) + h * x.stride(2);
}

// Copies tokens [begin, end) of one head to a dense [end - begin, D].
template <typename T>
void PackHead(const TensorView& x, int64_t b, int64_t begin, int64_t end, int64_t h, T* to) {
  const int64_t head_size = x.dim(3);
  for (int64_t t = begin; t < end; ++t) {
    std::memcpy(static_cast<void*>(to + (t - begin) * head_size), HeadRow<T>(x, b, t, h),
                head_size * sizeof(T));
  }
}

// Cuts one piece of memory into arrays that start on cache lines. Without memory, only adds up
// their sizes.
class Carver {
 public:
  explicit Carver(char* memory) : memory_(memory) {}

  template <typename T>
  T* Take(int64_t count) {
    T* const array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return array;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_KERNELS_CPU_ATTENTION_H_
