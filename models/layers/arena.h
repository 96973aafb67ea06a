#ifndef TESSERA_MODELS_LAYERS_ARENA_H_
#define TESSERA_MODELS_LAYERS_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tensor/tensor.h"

namespace tessera {

// Lays out buffers in one allocation of known size. The caller's code runs twice: first to measure
// (without a base), then to assign addresses.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  TensorView Take(DType dtype, Shape shape) {
    const int64_t offset = used_bytes_;
    used_bytes_ += (ElementCount(shape) * ElementSize(dtype) + kAlignmentBytes - 1) /
                   kAlignmentBytes * kAlignmentBytes;
    high_water_bytes_ = std::max(high_water_bytes_, used_bytes_);
    return base_ == nullptr ? TensorView() : TensorView(base_ + offset, dtype, std::move(shape));
  }
  // Mark() returns the current position. Rewind() to it releases everything taken since, whose
  // memory the next Take() may reuse.
  int64_t Mark() const { return used_bytes_; }
  void Rewind(int64_t mark) { used_bytes_ = mark; }

  int64_t high_water_bytes() const { return high_water_bytes_; }

 private:
  static constexpr int64_t kAlignmentBytes = 64;
  std::byte* base_;
  int64_t used_bytes_ = 0;
  int64_t high_water_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_ARENA_H_
