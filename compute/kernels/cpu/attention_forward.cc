// The forward pass of causal attention: each query's scores of the keys become probabilities, which
// weight the values: out = dropout(softmax(scale * q k^T)) v. See attention.h.
//
// All scores of a block of rows are held at once ([Q, end] fp32), so that the softmax is the plain
// one and each product is one oneDNN call. Probabilities enter the second product before they are
// divided by their sum; its rows are divided instead.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/attention_forward.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <vector>

#include "base/checked_math.h"
#include "base/dispatch.h"
#include "compute/kernels/cpu/attention.h"
#include "compute/kernels/cpu/cpu_backend_impl.h"
#include "compute/kernels/cpu/dropout_mask.h"
#include "compute/kernels/cpu/elementwise-inl.h"
#include "compute/kernels/cpu/gemm_interface.h"
#include "compute/kernels/cpu/loops.h"
#include "compute/kernels/cpu/vector-inl.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

struct RowSum {
  float max;
  float sum;  // of the powers
};

// Multiplies each score of one row by `factor`. With m the largest product, writes 2^(product - m)
// as T to `p`, and zeros from `visible` to `end`. `p` may begin where the scores do.
template <typename T>
TESSERA_INLINE RowSum ExponentiateRow(const float* scores, int64_t visible, int64_t end,
                                      float factor, T* p) {
  const int64_t whole = visible / kLanes * kLanes, rest = visible - whole;
  F32x16 max_lanes = scores[0], max_lanes2 = max_lanes;
  int64_t i = 0;
  for (; i + kLanes < whole; i += 2 * kLanes) {
    max_lanes = Max(Load(scores + i), max_lanes);
    max_lanes2 = Max(Load(scores + i + kLanes), max_lanes2);
  }
  if (i < whole) max_lanes = Max(Load(scores + i), max_lanes);
  float max = ReduceMax(Max(max_lanes, max_lanes2));
  for (i = whole; i < visible; ++i) max = std::max(max, scores[i]);
  max *= factor;
  F32x16 sum_lanes = {};
  for (i = 0; i < whole; i += kLanes) {
    const F32x16 power = Exp2(MulSub(Load(scores + i), factor, max));
    Store(power, p + i);
    sum_lanes += power;
  }
  if (rest > 0) {
    // Lanes that do not exist are 2^-infinity.
    float lanes[kLanes];
    Store(-kInfinity, lanes);
    std::memcpy(lanes, scores + whole, rest * sizeof(float));
    const F32x16 power = Exp2(MulSub(Load(lanes), factor, max));
    StorePart(power, p + whole, rest);
    sum_lanes += power;
  }
  std::memset(static_cast<void*>(p + visible), 0, (end - visible) * sizeof(T));
  return {max, ReduceSum(sum_lanes)};
}

// The rows [begin, end) of scores, [end - begin, end], by positions: row t sees the keys [0, t].
template <typename T>
void SoftmaxRows(const float* scores, int64_t begin, int64_t end, float factor, T* p,
                 float* log_sum_exp, float* inverse_sums) {
  for (int64_t t = begin; t < end; ++t, scores += end, p += end) {
    const RowSum row = ExponentiateRow(scores, t + 1, end, factor, p);
    log_sum_exp[t - begin] = row.max;
    inverse_sums[t - begin] = row.sum;
  }
  ForLanes(end - begin, [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 max = load(log_sum_exp + i), sum = load(inverse_sums + i);
    store(MulAdd(max, kLn2, Log(sum)), log_sum_exp + i);
    store(1.0f / sum, inverse_sums + i);
  });
}

template <typename T>
void MultiplyRange(const float* factors, int64_t count, T* p) {
  ForLanes(count, [&](int64_t i, auto load, auto store)
                      HWY_ATTR { store(load(p + i) * load(factors + i), p + i); });
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

// The matrix products for Q query rows, which see the keys [0, end).
struct Products {
  const Gemm* scores;  // [Q,end] = q k^T
  const Gemm* out;     // [Q,D] = p v
};

Products MakeProducts(GemmCache& gemms, DType dtype, int64_t rows, int64_t end, int64_t head_size) {
  return {&gemms.Get({.m = rows,
                      .n = end,
                      .k = head_size,
                      .lda = head_size,
                      .ldb = head_size,
                      .ldc = end,
                      .b_transposed = true,
                      .input = dtype,
                      .output = DType::kF32}),
          &gemms.Get({.m = rows,
                      .n = head_size,
                      .k = end,
                      .lda = end,
                      .ldb = head_size,
                      .ldc = head_size,
                      .input = dtype,
                      .output = DType::kF32})};
}

// A thread's scratch memory.
template <typename T>
struct Scratch {
  Scratch(char* memory, const AttentionShape& shape, bool drop) {
    Carver carver(memory);
    const int64_t rows = shape.block_rows();
    k = carver.Take<T>(shape.keys * shape.head_size);
    v = carver.Take<T>(shape.keys * shape.head_size);
    q = carver.Take<T>(rows * shape.head_size);
    out = carver.Take<float>(rows * shape.head_size);
    scores = carver.Take<float>(rows * shape.keys);
    inverse_sums = carver.Take<float>(rows);
    factors = carver.Take<float>(drop ? shape.sequence : 0);
    bytes = carver.bytes();
  }

  T* k;                 // [T,D]
  T* v;                 // [T,D]
  T* q;                 // [Q,D]
  float* out;           // [Q,D]
  float* scores;        // [Q,end], where [Q,end] of T take their place row by row
  float* inverse_sums;  // [Q]
  float* factors;       // [end], with dropout
  int64_t bytes;
};

}  // namespace

void CpuBackend::Run(const ops::AttentionForward& op) {
  const AttentionShape shape = AttentionShapeOf(op.q, op.k);
  if (op.q.elements() == 0) return;
  const int64_t head_size = shape.head_size;
  std::vector<Products> products;
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    products.push_back(
        MakeProducts(gemms_, op.q.dtype(), shape.rows(block), shape.end_key(block), head_size));
  }
  const float factor = static_cast<float>(op.options.scale * std::numbers::log2e);
  const bool drop = op.options.dropout_probability > 0;
  // A task is every parts-th block of one head: one part where there are heads enough. How blocks
  // are dealt out does not change what each of them is.
  const int64_t all_heads = shape.batch * shape.heads;
  const int64_t parts =
      std::min(shape.blocks(), CeilDivide(int64_t{4} * pool_.threads(), all_heads));
  WithType(op.q.dtype(), [&]<typename T>(T) {
    const auto softmax_rows = TESSERA_CHOOSE(SoftmaxRows<T>);
    const auto multiply_range = TESSERA_CHOOSE(MultiplyRange<T>);
    const auto store_head_rows = TESSERA_CHOOSE(StoreHeadRows<T>);
    const int64_t scratch_bytes = Scratch<T>(nullptr, shape, drop).bytes;
    workspace_.ReservePerThread(scratch_bytes);
    pool_.ParallelFor(all_heads * parts, [&](int64_t task, int thread) {
      const int64_t b = task / parts / shape.heads, h = task / parts % shape.heads;
      const int64_t last_block = shape.blocks() - 1 - task % parts;
      const Scratch<T> scratch(workspace_.OfThread<char>(thread, scratch_bytes), shape, drop);
      PackHead<T>(op.k, b, 0, shape.end_key(last_block), h / shape.group(), scratch.k);
      PackHead<T>(op.v, b, 0, shape.end_key(last_block), h / shape.group(), scratch.v);
      float* row_sums = op.log_sum_exp.as<float>() + (b * shape.heads + h) * shape.sequence;
      const DropoutMask mask(op.options.dropout_stream, op.options.first_sample + b,
                             op.options.dropout_probability);
      for (int64_t block = last_block; block >= 0; block -= parts) {
        const int64_t begin = shape.begin(block), end = shape.end(block);
        PackHead<T>(op.q, b, begin, end, h, scratch.q);
        products[block].scores->Run(thread, scratch.q, scratch.k, scratch.scores);
        T* const probabilities = reinterpret_cast<T*>(scratch.scores);
        softmax_rows(scratch.scores, shape.first_position() + begin, shape.end_key(block), factor,
                     probabilities, row_sums + begin, scratch.inverse_sums);
        for (int64_t t = begin; drop && t < end; ++t) {
          const int64_t first = ((op.options.first_head + h) * shape.sequence + t) * shape.sequence;
          mask.Factors(static_cast<uint64_t>(first), t + 1, scratch.factors);
          multiply_range(scratch.factors, t + 1, probabilities + (t - begin) * end);
        }
        products[block].out->Run(thread, probabilities, scratch.v, scratch.out);
        store_head_rows(scratch.out, scratch.inverse_sums, 1, end - begin, head_size,
                        HeadRow<T>(op.out, b, begin, h), op.out.stride(1));
      }
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
