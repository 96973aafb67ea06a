// The backward pass of attention, with p = softmax(scale * q k^T) computed again from the row sums
// that the forward pass left, f the dropout factors and delta[t] = d_out[t] . out[t]:
//   d_v = (p f)^T d_out,   d_p = d_out v^T,   d_s = scale * p (f d_p - delta),   d_q = d_s k,   d_k
//   = d_s^T q.
//
// One task is one key/value head of one sequence: its query heads, and their blocks of rows, add to
// d_k and d_v in order.

#include <glog/logging.h>

#include <algorithm>
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
namespace {

struct Products {
  const Gemm* scores;  // q k^T
  const Gemm* d_p;     // d_out v^T
  const Gemm* d_v;     // += p^T d_out
  const Gemm* d_k;     // += d_s^T q
  const Gemm* d_q;     // d_s k
};

// A thread's scratch memory, in the order in which it lies in one buffer.
template <typename T>
struct Scratch {
  Scratch(float* memory, int64_t area, int64_t stride, int64_t kv_elements)
      : d_k(memory),
        d_v(d_k + kv_elements),
        scores(d_v + kv_elements),
        d_p(scores + area),
        factors(d_p + area),
        p(reinterpret_cast<T*>(factors + stride)),
        d_s(p + area) {}

  // In floats, whatever T is.
  static int64_t Count(int64_t area, int64_t stride, int64_t kv_elements) {
    return 2 * kv_elements + 4 * area + stride;
  }

  float* d_k;      // [T,D]
  float* d_v;      // [T,D]
  float* scores;   // [Q,end]
  float* d_p;      // [Q,end]
  float* factors;  // [end]
  T* p;            // [Q,end], with dropout
  T* d_s;          // [Q,end]
};

template <typename T>
float Dot(const T* a, const T* b, int64_t count) {
  F32x16 sum = {};
  ForLanes(count, [&](int64_t i, auto load, auto) { sum += load(a + i) * load(b + i); });
  return ReduceSum(sum);
}

// One row: from scores and d_p to p and d_s. factors: null without dropout.
template <typename T>
void BackwardRow(const float* scores, const float* d_p, const float* factors, int64_t visible,
                 int64_t end, float scale, float log_sum_exp, float delta, T* p, T* d_s) {
  ForLanes(visible, [&](int64_t i, auto load, auto store) {
    const F32x16 probability = Exp(load(scores + i) * scale - log_sum_exp);
    if (factors == nullptr) {
      store(probability, p + i);
      store(scale * probability * (load(d_p + i) - delta), d_s + i);
    } else {
      const F32x16 factor = load(factors + i);
      store(probability * factor, p + i);
      store(scale * probability * (load(d_p + i) * factor - delta), d_s + i);
    }
  });
  std::memset(static_cast<void*>(p + visible), 0, (end - visible) * sizeof(T));
  std::memset(static_cast<void*>(d_s + visible), 0, (end - visible) * sizeof(T));
}

template <typename T>
void StoreHead(const float* from, const AttentionShape& shape, const TensorView& to, int64_t b,
               int64_t head) {
  for (int64_t t = 0; t < shape.sequence; ++t) {
    const float* source = from + t * shape.head_size;
    T* target = HeadRow<T>(to, b, t, head);
    ForLanes(shape.head_size,
             [&](int64_t i, auto load, auto store) { store(load(source + i), target + i); });
  }
}

}  // namespace

void CpuBackend::AttentionBackward(const AttentionOptions& options, TensorView d_out, TensorView q,
                                   TensorView k, TensorView v, TensorView out,
                                   TensorView log_sum_exp, TensorView d_q, TensorView d_k,
                                   TensorView d_v) {
  const AttentionShape shape = AttentionShapeOf(q, k, v);
  CHECK_EQ(AttentionShapeOf(d_q, d_k, d_v).kv_heads, shape.kv_heads);
  CHECK(d_q.shape() == q.shape() && d_k.shape() == k.shape() && d_q.dtype() == q.dtype());
  for (const TensorView* x : {&out, &d_out}) {
    CHECK(x->shape() == q.shape() && x->dtype() == q.dtype());
    CHECK(x->dim(3) == 1 || x->stride(3) == 1);
  }
  CHECK(log_sum_exp.dtype() == DType::kF32 && log_sum_exp.contiguous());
  CHECK_EQ(log_sum_exp.elements(), shape.batch * shape.heads * shape.sequence);
  if (q.elements() == 0) return;
  const int64_t stride = shape.score_stride();
  const DType dtype = q.dtype();
  std::vector<Products> products(shape.blocks());
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    const int64_t rows = shape.rows(block), end = shape.end(block);
    const auto to_scores = [&](int64_t lda, int64_t ldb) {
      return &gemms_.Get({.m = rows,
                          .n = end,
                          .k = shape.head_size,
                          .lda = lda,
                          .ldb = ldb,
                          .ldc = stride,
                          .b_transposed = true,
                          .input = dtype,
                          .output = DType::kF32});
    };
    const auto to_keys = [&](int64_t ldb) {
      return &gemms_.Get({.m = end,
                          .n = shape.head_size,
                          .k = rows,
                          .lda = stride,
                          .ldb = ldb,
                          .ldc = shape.head_size,
                          .a_transposed = true,
                          .input = dtype,
                          .output = DType::kF32,
                          .accumulate = true});
    };
    products[block] = {to_scores(q.stride(1), k.stride(1)), to_scores(d_out.stride(1), v.stride(1)),
                       to_keys(d_out.stride(1)), to_keys(q.stride(1)),
                       &gemms_.Get({.m = rows,
                                    .n = shape.head_size,
                                    .k = end,
                                    .lda = stride,
                                    .ldb = k.stride(1),
                                    .ldc = d_q.stride(1),
                                    .input = dtype,
                                    .output = dtype})};
  }
  const float scale = static_cast<float>(options.scale);
  const bool drop = options.dropout_probability > 0;
  const int64_t area = shape.block_rows() * stride;
  const int64_t kv_elements = shape.sequence * shape.head_size;
  WithType(dtype, [&]<typename T>(T) {
    pool_.ParallelFor(shape.batch * shape.kv_heads, [&](int64_t task, int thread) {
      const int64_t b = task / shape.kv_heads, kv_head = task % shape.kv_heads;
      const Scratch<T> scratch(
          workspace_.OfThread<float>(thread, Scratch<T>::Count(area, stride, kv_elements)), area,
          stride, kv_elements);
      std::fill(scratch.d_k, scratch.d_k + 2 * kv_elements, 0.0f);
      const DropoutMask mask(options.dropout_stream, options.first_sample + b,
                             options.dropout_probability);
      const T* keys = HeadRow<T>(k, b, 0, kv_head);
      const T* values = HeadRow<T>(v, b, 0, kv_head);
      for (int64_t h = kv_head * shape.group(); h < (kv_head + 1) * shape.group(); ++h) {
        const float* row_sums = log_sum_exp.as<float>() + (b * shape.heads + h) * shape.sequence;
        for (int64_t block = 0; block < shape.blocks(); ++block) {
          const Products& product = products[block];
          const int64_t begin = shape.begin(block), end = shape.end(block);
          const T* q_rows = HeadRow<T>(q, b, begin, h);
          const T* d_out_rows = HeadRow<T>(d_out, b, begin, h);
          product.scores->Run(thread, q_rows, keys, scratch.scores);
          product.d_p->Run(thread, d_out_rows, values, scratch.d_p);
          for (int64_t t = begin; t < end; ++t) {
            const int64_t offset = (t - begin) * stride;
            if (drop) {
              const int64_t first =
                  ((options.first_head + h) * shape.sequence + t) * shape.sequence;
              mask.Factors(static_cast<uint64_t>(first), t + 1, scratch.factors);
            }
            const float delta =
                Dot(HeadRow<T>(d_out, b, t, h), HeadRow<T>(out, b, t, h), shape.head_size);
            BackwardRow(scratch.scores + offset, scratch.d_p + offset,
                        drop ? scratch.factors : nullptr, t + 1, end, scale, row_sums[t], delta,
                        scratch.p + offset, scratch.d_s + offset);
          }
          product.d_v->Run(thread, scratch.p, d_out_rows, scratch.d_v);
          product.d_k->Run(thread, scratch.d_s, q_rows, scratch.d_k);
          product.d_q->Run(thread, scratch.d_s, keys, HeadRow<T>(d_q, b, begin, h));
        }
      }
      StoreHead<T>(scratch.d_k, shape, d_k, b, kv_head);
      StoreHead<T>(scratch.d_v, shape, d_v, b, kv_head);
    });
  });
}

}  // namespace tessera
