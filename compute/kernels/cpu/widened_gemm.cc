#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "compute/kernels/cpu/gemm.h"
#include "compute/kernels/cpu/gemm_libraries.h"
#include "compute/kernels/cpu/workspace.h"
#include "compute/tensor/bfloat16.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

// The part of k that is widened at once: two of the parts into which OpenBLAS's kernels split k.
constexpr int64_t kMaxDepth = 640;

// A matrix of which a part of k is widened at once.
struct Operand {
  int64_t extent;   // m or n
  int64_t leading;  // as stored
  bool k_is_dense;  // elements along k are contiguous

  // Widens k in [first, first + depth). The result is dense, in the storage order of `from`.
  void Widen(const BFloat16* from, int64_t first, int64_t depth, float* to) const {
    if (k_is_dense) {
      WidenRows(from + first, leading, extent, depth, to);
    } else {
      WidenRows(from + first * leading, leading, depth, extent, to);
    }
  }
  int64_t widened_leading(int64_t depth) const { return k_is_dense ? depth : extent; }
};

class WidenedGemm final : public Gemm {
 public:
  WidenedGemm(const GemmShape& shape, const std::function<const Gemm&(const GemmShape&)>& wide,
              Workspace& scratch)
      : shape_(shape),
        a_{shape.m, shape.lda, !shape.a_transposed},
        b_{shape.n, shape.ldb, shape.b_transposed},
        parts_((shape.k + kMaxDepth - 1) / kMaxDepth),
        depth_((shape.k + parts_ - 1) / parts_),
        rounds_(shape.output == DType::kBF16),
        scratch_(scratch) {
    CHECK(!shape.b_packed);
    for (int64_t part = 0; part < parts_; ++part) {
      if (part > 1 && part + 1 < parts_) continue;  // same shape as part 1
      GemmShape product = shape;
      product.k = PartDepth(part);
      product.lda = a_.widened_leading(product.k);
      product.ldb = b_.widened_leading(product.k);
      product.ldc = rounds_ ? shape.n : shape.ldc;
      product.input = product.output = DType::kF32;
      product.accumulate = shape.accumulate || part > 0;
      product.bias = shape.bias && part == 0;
      (part == 0 ? first_ : part + 1 == parts_ ? last_ : middle_) = &wide(product);
    }
    scratch.ReservePerThread(scratch_bytes());
  }

  void Run(int thread, const void* a, const void* b, void* c, const void* bias) const override {
    float* const wide_a = scratch_.OfThread<float>(thread, scratch_elements());
    float* const wide_b = wide_a + shape_.m * depth_;
    float* const wide_bias = wide_b + shape_.n * depth_;
    float* const sum = rounds_ ? wide_bias + shape_.n : static_cast<float*>(c);
    BFloat16* const rounded = static_cast<BFloat16*>(c);
    if (shape_.bias) {
      WidenRows(static_cast<const BFloat16*>(bias), shape_.n, 1, shape_.n, wide_bias);
    }
    if (rounds_ && shape_.accumulate) WidenRows(rounded, shape_.ldc, shape_.m, shape_.n, sum);
    for (int64_t part = 0; part < parts_; ++part) {
      const int64_t first = part * depth_, depth = PartDepth(part);
      a_.Widen(static_cast<const BFloat16*>(a), first, depth, wide_a);
      b_.Widen(static_cast<const BFloat16*>(b), first, depth, wide_b);
      const Gemm& product = part == 0 ? *first_ : part + 1 == parts_ ? *last_ : *middle_;
      product.Run(thread, wide_a, wide_b, sum, shape_.bias && part == 0 ? wide_bias : nullptr);
    }
    if (rounds_) RoundRows(sum, shape_.m, shape_.n, rounded, shape_.ldc);
  }

 private:
  int64_t PartDepth(int64_t part) const { return std::min(depth_, shape_.k - part * depth_); }
  int64_t scratch_elements() const {
    return (shape_.m + shape_.n) * depth_ + shape_.n + (rounds_ ? shape_.m * shape_.n : 0);
  }
  int64_t scratch_bytes() const { return scratch_elements() * static_cast<int64_t>(sizeof(float)); }

  const GemmShape shape_;
  const Operand a_, b_;
  const int64_t parts_, depth_;  // of k
  const bool rounds_;            // c is bf16: the sum is kept in scratch memory
  Workspace& scratch_;
  const Gemm* first_ = nullptr;
  const Gemm* middle_ = nullptr;
  const Gemm* last_ = nullptr;
};

}  // namespace

std::unique_ptr<Gemm> MakeWidenedGemm(const GemmShape& shape,
                                      const std::function<const Gemm&(const GemmShape&)>& wide,
                                      Workspace& scratch) {
  return std::make_unique<WidenedGemm>(shape, wide, scratch);
}

}  // namespace tessera
