// out = dropout(softmax(scale * q k^T)) v, causal. See attention.h.

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "trainer/kernels/cpu/attention.h"
#include "trainer/kernels/cpu/cpu_backend_impl.h"
#include "trainer/kernels/cpu/dropout_mask.h"
#include "trainer/kernels/cpu/gemm.h"
#include "trainer/kernels/cpu/loops.h"
#include "trainer/kernels/cpu/vector.h"
#include "trainer/tensor/dtype.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

AttentionShape AttentionShapeOf(const TensorView& q, const TensorView& k, const TensorView& v) {
  CHECK(q.rank() == 4 && k.rank() == 4 && v.rank() == 4);
  CHECK(k.shape() == v.shape() && q.dtype() == k.dtype() && q.dtype() == v.dtype());
  CHECK(q.dim(0) == k.dim(0) && q.dim(1) == k.dim(1) && q.dim(3) == k.dim(3))
      << ToString(q.shape()) << " " << ToString(k.shape());
  CHECK(k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0) << "query heads per key/value head";
  for (const TensorView* x : {&q, &k, &v}) CHECK(x->dim(3) == 1 || x->stride(3) == 1);
  return {q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3)};
}

namespace {

// scores[0, visible) become exp(scale * score - its maximum), and zero up to `end`.
struct RowSum {
  float max;  // of scale * score
  float sum;  // of the exponentials
};

RowSum ExponentiateRow(float* scores, int64_t visible, int64_t end, float scale) {
  F32x16 max_lanes = Splat(scores[0]);
  const int64_t whole = visible / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) max_lanes = Max(Load(scores + i), max_lanes);
  float max = ReduceMax(max_lanes);
  for (int64_t i = whole; i < visible; ++i) max = std::max(max, scores[i]);
  max *= scale;
  F32x16 sum_lanes = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 e = Exp(Load(scores + i) * scale - max);
    Store(e, scores + i);
    sum_lanes += e;
  }
  std::fill(scores + visible, scores + end, 0.0f);
  float sum = ReduceSum(sum_lanes);
  if (whole < visible) {
    const int64_t rest = visible - whole;
    StorePart(Exp(LoadPart(scores + whole, rest) * scale - max), scores + whole, rest);
    for (int64_t i = whole; i < visible; ++i) sum += scores[i];
  }
  return {max, sum};
}

struct Products {
  const Gemm* scores;  // q k^T
  const Gemm* out;     // p v
};

}  // namespace

void CpuBackend::AttentionForward(const AttentionOptions& options, TensorView q, TensorView k,
                                  TensorView v, TensorView out, TensorView log_sum_exp) {
  const AttentionShape shape = AttentionShapeOf(q, k, v);
  CHECK(out.shape() == q.shape() && out.dtype() == q.dtype());
  CHECK(out.dim(3) == 1 || out.stride(3) == 1);
  CHECK(log_sum_exp.dtype() == DType::kF32 && log_sum_exp.contiguous());
  CHECK_EQ(log_sum_exp.elements(), shape.batch * shape.heads * shape.sequence);
  CHECK_GT(options.scale, 0);
  if (q.elements() == 0) return;
  const int64_t stride = shape.score_stride();
  std::vector<Products> products(shape.blocks());
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    products[block] = {&gemms_.Get({.m = shape.rows(block),
                                    .n = shape.end(block),
                                    .k = shape.head_size,
                                    .lda = q.stride(1),
                                    .ldb = k.stride(1),
                                    .ldc = stride,
                                    .b_transposed = true,
                                    .input = q.dtype(),
                                    .output = DType::kF32}),
                       &gemms_.Get({.m = shape.rows(block),
                                    .n = shape.head_size,
                                    .k = shape.end(block),
                                    .lda = stride,
                                    .ldb = v.stride(1),
                                    .ldc = out.stride(1),
                                    .input = q.dtype(),
                                    .output = q.dtype()})};
  }
  const float scale = static_cast<float>(options.scale);
  const bool drop = options.dropout_probability > 0;
  const int64_t area = shape.block_rows() * stride;
  WithType(q.dtype(), [&]<typename T>(T) {
    pool_.ParallelFor(shape.batch * shape.heads * shape.blocks(), [&](int64_t task, int thread) {
      // The longest blocks first: what is left at the end is small.
      const int64_t block = shape.blocks() - 1 - task / (shape.batch * shape.heads);
      const int64_t b = task / shape.heads % shape.batch, h = task % shape.heads;
      const int64_t kv_head = h / shape.group(), begin = shape.begin(block);
      const int64_t end = shape.end(block);
      float* scores = workspace_.OfThread<float>(thread, 2 * area + stride);
      float* factors = scores + area;
      T* probabilities =
          sizeof(T) == 4 ? reinterpret_cast<T*>(scores) : reinterpret_cast<T*>(factors + stride);
      products[block].scores->Run(thread, HeadRow<T>(q, b, begin, h), HeadRow<T>(k, b, 0, kv_head),
                                  scores);
      const DropoutMask mask(options.dropout_stream, options.first_sample + b,
                             options.dropout_probability);
      for (int64_t t = begin; t < end; ++t) {
        float* row = scores + (t - begin) * stride;
        const RowSum sum = ExponentiateRow(row, t + 1, end, scale);
        log_sum_exp.as<float>()[(b * shape.heads + h) * shape.sequence + t] =
            sum.max + std::log(sum.sum);
        const float inverse = 1.0f / sum.sum;
        if (drop) {
          const int64_t first = ((options.first_head + h) * shape.sequence + t) * shape.sequence;
          mask.Factors(static_cast<uint64_t>(first), t + 1, factors);
          std::fill(factors + t + 1, factors + end, 0.0f);
        }
        T* p = probabilities + (t - begin) * stride;
        ForLanes(end, [&](int64_t i, auto load, auto store) {
          F32x16 value = load(row + i) * inverse;
          if (drop) value *= load(factors + i);
          store(value, p + i);
        });
      }
      products[block].out->Run(thread, probabilities, HeadRow<T>(v, b, 0, kv_head),
                               HeadRow<T>(out, b, begin, h));
    });
  });
}

}  // namespace tessera
