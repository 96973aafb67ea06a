// The backward pass of attention: the gradients of queries, keys and values, from that of the
// output. The probabilities p of the forward pass are not stored. They are computed again from the
// scores and from the row sums that the forward pass left. With dropout, f is the factor of each
// probability. A query row's delta is the sum of its output's elements times their gradients:
//   p = softmax(scale * q k^T),   delta[t] = d_out[t] . out[t],
//   d_v = (p f)^T d_out,   d_p = d_out v^T,   d_s = scale * p (f d_p - delta),   d_q = d_s k,
//   d_k = d_s^T q.
//
// One task is one key/value head of one sequence: its query heads, and their blocks of rows, add to
// d_k and d_v in order.
//
// Scores are computed transposed, [keys, Q], a chunk of keys at a time. p and d_s are then the
// plain left operands of the products that make d_v and d_k. The row sums lie along the lanes, and
// a chunk stays in the second-level cache. T elements take the place of the fp32 ones that they are
// computed from.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/kernels/cpu/attention_backward.cc"
#include <glog/logging.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <vector>

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

template <typename T>
TESSERA_INLINE float Dot(const T* a, const T* b, int64_t count) {
  F32x16 sum = {};
  ForLanes(count, [&](int64_t i, auto load, auto)
                      HWY_ATTR { sum = MulAdd(load(a + i), load(b + i), sum); });
  return ReduceSum(sum);
}

// Computes one key's p and d_s from its scores and d_p, for the query rows [first, rows), and zeros
// before. factor: of a score, base 2. factors: null without dropout. p and d_s may begin where
// scores and d_p do.
template <typename T>
TESSERA_INLINE void BackwardKey(const float* scores, const float* d_p, const float* factors,
                                const float* log2_sums, const float* deltas, int64_t first,
                                int64_t rows, float factor, T* p, T* d_s) {
  const auto lanes = [&](int64_t i, auto load, auto store) HWY_ATTR {
    const F32x16 probability = Exp2(MulSub(load(scores + i), factor, load(log2_sums + i)));
    if (factors == nullptr) {
      const F32x16 gradient = probability * (load(d_p + i) - load(deltas + i));
      store(probability, p + i);
      store(gradient, d_s + i);
    } else {
      const F32x16 kept = load(factors + i);
      const F32x16 gradient = probability * MulSub(load(d_p + i), kept, load(deltas + i));
      store(probability * kept, p + i);
      store(gradient, d_s + i);
    }
  };
  ForLanes(first / kLanes * kLanes, rows, lanes);
  std::memset(static_cast<void*>(p), 0, first * sizeof(T));
  std::memset(static_cast<void*>(d_s), 0, first * sizeof(T));
}

// Does so for the keys of a chunk, [keys, rows]; of the query rows, first_row is the one that sees
// the first key of the chunk and no more.
template <typename T>
void BackwardKeys(const float* scores, const float* d_p, const float* factors,
                  const float* log2_sums, const float* deltas, int64_t keys, int64_t first_row,
                  int64_t rows, float factor, T* p, T* d_s) {
  for (int64_t key = 0; key < keys; ++key) {
    const int64_t at = key * rows;
    BackwardKey(scores + at, d_p + at, factors == nullptr ? nullptr : factors + at, log2_sums,
                deltas, std::max<int64_t>(0, first_row + key), rows, factor, p + at, d_s + at);
  }
}

// deltas[row] = d_out[row] . out[row]; d_out is dense.
template <typename T>
void Deltas(const T* d_out, const T* out, int64_t out_stride, int64_t rows, int64_t head_size,
            float* deltas) {
  for (int64_t row = 0; row < rows; ++row) {
    deltas[row] = Dot(d_out + row * head_size, out + row * out_stride, head_size);
  }
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

// Keys whose scores are held at once.
constexpr int64_t kChunkKeys = 256;

// The matrix products for N keys and Q query rows.
struct Products {
  const Gemm* scores;  // [N,Q] = k q^T; v d_out^T also
  const Gemm* to_kv;   // [N,D] += p d_out; d_s q also
  const Gemm* d_q;     // [Q,D] += d_s^T k
};

Products MakeProducts(GemmCache& gemms, DType dtype, int64_t keys, int64_t rows,
                      int64_t head_size) {
  return {&gemms.Get({.m = keys,
                      .n = rows,
                      .k = head_size,
                      .lda = head_size,
                      .ldb = head_size,
                      .ldc = rows,
                      .b_transposed = true,
                      .input = dtype,
                      .output = DType::kF32}),
          &gemms.Get({.m = keys,
                      .n = head_size,
                      .k = rows,
                      .lda = rows,
                      .ldb = head_size,
                      .ldc = head_size,
                      .input = dtype,
                      .output = DType::kF32,
                      .accumulate = true}),
          &gemms.Get({.m = rows,
                      .n = head_size,
                      .k = keys,
                      .lda = rows,
                      .ldb = head_size,
                      .ldc = head_size,
                      .a_transposed = true,
                      .input = dtype,
                      .output = DType::kF32,
                      .accumulate = true})};
}

// A thread's scratch memory. N: keys of a chunk.
template <typename T>
struct Scratch {
  Scratch(char* memory, const AttentionShape& shape, bool drop) {
    Carver carver(memory);
    const int64_t rows = shape.block_rows(), head_size = shape.head_size;
    const int64_t keys = std::min(kChunkKeys, shape.sequence);
    k = carver.Take<T>(shape.sequence * head_size);
    v = carver.Take<T>(shape.sequence * head_size);
    d_k = carver.Take<float>(shape.sequence * head_size);
    d_v = carver.Take<float>(shape.sequence * head_size);
    q = carver.Take<T>(rows * head_size);
    d_out = carver.Take<T>(rows * head_size);
    d_q = carver.Take<float>(rows * head_size);
    log2_sums = carver.Take<float>(rows);
    deltas = carver.Take<float>(rows);
    scores = carver.Take<float>(keys * rows);
    d_p = carver.Take<float>(keys * rows);
    row_factors = carver.Take<float>(drop ? keys : 0);
    factors = carver.Take<float>(drop ? keys * rows : 0);
    bytes = carver.bytes();
  }

  T* k;                // [T,D]
  T* v;                // [T,D]
  float* d_k;          // [T,D], without the scale
  float* d_v;          // [T,D]
  T* q;                // [Q,D]
  T* d_out;            // [Q,D]
  float* d_q;          // [Q,D], without the scale
  float* log2_sums;    // [Q], base 2
  float* deltas;       // [Q]
  float* scores;       // [N,Q], then p
  float* d_p;          // [N,Q], then d_s
  float* row_factors;  // [N], with dropout
  float* factors;      // [N,Q], with dropout
  int64_t bytes;
};

// factors[key - begin_key][row] of the rows [first_row, first_row + rows) of the mask, each
// `sequence` long.
void TransposedFactors(const DropoutMask& mask, int64_t first_row, int64_t sequence, int64_t rows,
                       int64_t begin_key, int64_t end_key, float* row_factors, float* factors) {
  const int64_t keys = end_key - begin_key;
  for (int64_t row = 0; row < rows; ++row) {
    mask.Factors(static_cast<uint64_t>((first_row + row) * sequence + begin_key), keys,
                 row_factors);
    for (int64_t key = 0; key < keys; ++key) factors[key * rows + row] = row_factors[key];
  }
}

// One task: the key/value head kv_head of sample b, on one thread.
template <typename T>
struct KvHeadTask {
  const ops::AttentionBackward& op;
  const AttentionShape& shape;
  int64_t b;
  int64_t kv_head;
  int thread;
  DropoutMask mask;
  Scratch<T> scratch;
};

// Packs the task's keys and values, and clears their gradients.
template <typename T>
void TakeKeys(const KvHeadTask<T>& task) {
  const int64_t sequence = task.shape.sequence, elements = sequence * task.shape.head_size;
  PackHead<T>(task.op.k, task.b, 0, sequence, task.kv_head, task.scratch.k);
  PackHead<T>(task.op.v, task.b, 0, sequence, task.kv_head, task.scratch.v);
  std::fill(task.scratch.d_k, task.scratch.d_k + elements, 0.0f);
  std::fill(task.scratch.d_v, task.scratch.d_v + elements, 0.0f);
}

// Prepares a block, the rows [begin, end) of query head h, for its products with keys.
template <typename T>
void TakeBlock(const KvHeadTask<T>& task, int64_t h, int64_t begin, int64_t end) {
  const ops::AttentionBackward& op = task.op;
  const AttentionShape& shape = task.shape;
  const Scratch<T>& scratch = task.scratch;
  const int64_t rows = end - begin, head_size = shape.head_size;
  PackHead<T>(op.q, task.b, begin, end, h, scratch.q);
  PackHead<T>(op.d_out, task.b, begin, end, h, scratch.d_out);
  std::fill(scratch.d_q, scratch.d_q + rows * head_size, 0.0f);
  const float* row_sums =
      op.log_sum_exp.as<float>() + (task.b * shape.heads + h) * shape.sequence + begin;
  for (int64_t row = 0; row < rows; ++row) {
    scratch.log2_sums[row] = row_sums[row] * std::numbers::log2e_v<float>;
  }
  const auto deltas = TESSERA_CHOOSE(Deltas<T>);
  deltas(scratch.d_out, HeadRow<T>(op.out, task.b, begin, h), op.out.stride(1), rows, head_size,
         scratch.deltas);
}

// Adds the gradients that the block's rows and the keys [key, end_key), a chunk, make of each
// other: to d_q of the block, and to d_k and d_v of the keys.
template <typename T>
void AddChunk(const KvHeadTask<T>& task, const Products& products, int64_t h, int64_t begin,
              int64_t rows, int64_t key, int64_t end_key) {
  const Scratch<T>& scratch = task.scratch;
  const int64_t kv_offset = key * task.shape.head_size;
  const bool drop = task.op.options.dropout_probability > 0;
  products.scores->Run(task.thread, scratch.k + kv_offset, scratch.q, scratch.scores);
  products.scores->Run(task.thread, scratch.v + kv_offset, scratch.d_out, scratch.d_p);
  if (drop) {
    const int64_t sequence = task.shape.sequence;
    const int64_t first_row = (task.op.options.first_head + h) * sequence + begin;
    TransposedFactors(task.mask, first_row, sequence, rows, key, end_key, scratch.row_factors,
                      scratch.factors);
  }
  T* const p = reinterpret_cast<T*>(scratch.scores);
  T* const d_s = reinterpret_cast<T*>(scratch.d_p);
  const auto backward_keys = TESSERA_CHOOSE(BackwardKeys<T>);
  backward_keys(scratch.scores, scratch.d_p, drop ? scratch.factors : nullptr, scratch.log2_sums,
                scratch.deltas, end_key - key, key - begin, rows,
                static_cast<float>(task.op.options.scale * std::numbers::log2e), p, d_s);
  products.to_kv->Run(task.thread, p, scratch.d_out, scratch.d_v + kv_offset);
  products.to_kv->Run(task.thread, d_s, scratch.q, scratch.d_k + kv_offset);
  products.d_q->Run(task.thread, d_s, scratch.k + kv_offset, scratch.d_q);
}

// Stores [rows, head_size] of d_q, d_k or d_v, times a factor, from row `begin` of head h on.
template <typename T>
void StoreGradient(const KvHeadTask<T>& task, const float* gradient, float factor, int64_t begin,
                   int64_t rows, int64_t h, const TensorView& to) {
  const auto store_head_rows = TESSERA_CHOOSE(StoreHeadRows<T>);
  store_head_rows(gradient, nullptr, factor, rows, task.shape.head_size,
                  HeadRow<T>(to, task.b, begin, h), to.stride(1));
}

// Runs a task with the products of each block with each chunk of its keys.
template <typename T>
void RunKvHead(const KvHeadTask<T>& task, const std::vector<std::vector<Products>>& products) {
  const AttentionShape& shape = task.shape;
  const float scale = static_cast<float>(task.op.options.scale);
  TakeKeys(task);
  for (int64_t h = task.kv_head * shape.group(); h < (task.kv_head + 1) * shape.group(); ++h) {
    for (int64_t block = 0; block < shape.blocks(); ++block) {
      const int64_t begin = shape.begin(block), end = shape.end(block);
      TakeBlock(task, h, begin, end);
      for (int64_t key = 0; key < end; key += kChunkKeys) {
        AddChunk(task, products[block][key / kChunkKeys], h, begin, end - begin, key,
                 std::min(end, key + kChunkKeys));
      }
      StoreGradient(task, task.scratch.d_q, scale, begin, end - begin, h, task.op.d_q);
    }
  }
  StoreGradient(task, task.scratch.d_k, scale, 0, shape.sequence, task.kv_head, task.op.d_k);
  StoreGradient(task, task.scratch.d_v, 1, 0, shape.sequence, task.kv_head, task.op.d_v);
}

}  // namespace

void CpuBackend::Run(const ops::AttentionBackward& op) {
  const AttentionShape shape = AttentionShapeOf(op.q, op.k);
  if (op.q.elements() == 0) return;
  const bool drop = op.options.dropout_probability > 0;
  std::vector<std::vector<Products>> products(shape.blocks());
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    for (int64_t key = 0; key < shape.end(block); key += kChunkKeys) {
      products[block].push_back(MakeProducts(gemms_, op.q.dtype(),
                                             std::min(kChunkKeys, shape.end(block) - key),
                                             shape.rows(block), shape.head_size));
    }
  }
  WithType(op.q.dtype(), [&]<typename T>(T) {
    const int64_t scratch_bytes = Scratch<T>(nullptr, shape, drop).bytes;
    workspace_.ReservePerThread(scratch_bytes);
    pool_.ParallelFor(shape.batch * shape.kv_heads, [&](int64_t index, int thread) {
      const int64_t b = index / shape.kv_heads;
      const KvHeadTask<T> task = {
          op,
          shape,
          b,
          index % shape.kv_heads,
          thread,
          DropoutMask(op.options.dropout_stream, op.options.first_sample + b,
                      op.options.dropout_probability),
          {workspace_.OfThread<char>(thread, scratch_bytes), shape, drop}};
      RunKvHead(task, products);
    });
  });
}

}  // namespace tessera
#endif  // HWY_ONCE
