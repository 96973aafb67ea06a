// Attention in EXACT numerics. B batch, T sequence, H query heads, K key/value heads, D head size.
//
// Every score is one chain over the head's elements, and every element of a result one chain over
// keys, or queries, in ascending order. A row's maximum is known before its powers are computed, so
// the forward pass computes scores twice. Key j of a row is added in lane j % 16.
//
// A block owns 32 positions of one head and iterates over tiles of 32 positions of the other side,
// all in shared memory. A half warp has four rows of a product, each of its threads the columns
// lane, lane + 16, ...: of scores, those are the keys of its lane.

#include <glog/logging.h>

#include <cmath>
#include <cstdint>
#include <numbers>

#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/attention_tiles.h"
#include "compute/kernels/cuda/device_kernels.h"
#include "compute/kernels/cuda/exact_math.h"
#include "compute/kernels/cuda/operation.h"
#include "compute/kernels/cuda/philox_device.h"
#include "compute/kernels/cuda/simt.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

constexpr int kTile = 32, kOwn = 4;
constexpr int kExactThreads = kTile / kOwn * exact::kLanes;
constexpr int kTileKeys = kTile / exact::kLanes;  // of a lane

// [kTile, kColumns] in shared memory. Rows are one element longer, so that lanes read from other
// banks.
template <int kColumns>
class ExactTile {
 public:
  TESSERA_DEVICE explicit ExactTile(simt::SharedMemory& memory)
      : data_(memory.Take<float>(kTile * kStride)) {}

  TESSERA_DEVICE float Get(int row, int column) const { return data_.Get(row * kStride + column); }
  TESSERA_DEVICE void Set(int row, int column, float value) const {
    data_.Set(row * kStride + column, value);
  }
  static constexpr int64_t kBytes = kTile * (kColumns + 1) * sizeof(float);

 private:
  static constexpr int kStride = kColumns + 1;
  const simt::SharedArray<float> data_;
};

using ScoreTile = ExactTile<kTile>;
using Scores = float[kOwn][kTileKeys];
template <int kHead>
using Sums = float[kOwn][kHead / exact::kLanes];

// Returns the first of the calling thread's rows of a tile.
TESSERA_DEVICE int FirstOwn() { return simt::ThreadIndex() / exact::kLanes * kOwn; }

// Sets a tile to the positions from `first` on of a head; what is beyond is zeros.
template <int kHead>
TESSERA_DEVICE void LoadTile(const Heads<float>& from, const AttentionShape& shape, int64_t batch,
                             int64_t head, int first, const ExactTile<kHead>& to) {
  for (int e = simt::ThreadIndex(); e < kTile * kHead; e += kExactThreads) {
    const int row = e / kHead, d = e % kHead;
    const bool inside = first + row < shape.sequence && d < shape.head_size;
    to.Set(row, d, inside ? from.Row(batch, first + row, head)[d] : 0.0f);
  }
}

// products[i][j] = row i of the thread's rows of a, times row LaneOfRow() + 16 j of b.
template <int kHead>
TESSERA_DEVICE void MultiplyRows(const ExactTile<kHead>& a, const ExactTile<kHead>& b,
                                 int head_size, Scores& products) {
  for (auto& row : products) {
    for (float& product : row) product = 0;
  }
  for (int d = 0; d < head_size; ++d) {
    float left[kOwn], right[kTileKeys];
    for (int i = 0; i < kOwn; ++i) left[i] = a.Get(FirstOwn() + i, d);
    for (int j = 0; j < kTileKeys; ++j) right[j] = b.Get(exact::LaneOfRow() + exact::kLanes * j, d);
    for (int i = 0; i < kOwn; ++i) {
      for (int j = 0; j < kTileKeys; ++j) {
        products[i][j] = exact::MulAdd(left[i], right[j], products[i][j]);
      }
    }
  }
}

// sums[i][c] += the first `count` positions of a tile, each times its factor for row i of the
// thread's rows: factors[i][position], or, with kTransposed, factors[position][i].
template <bool kTransposed, int kHead>
TESSERA_DEVICE void AddPositions(const ScoreTile& factors, const ExactTile<kHead>& tile, int count,
                                 Sums<kHead>& sums) {
  for (int position = 0; position < count; ++position) {
    float left[kOwn];
    for (int i = 0; i < kOwn; ++i) {
      const int own = FirstOwn() + i;
      left[i] = kTransposed ? factors.Get(position, own) : factors.Get(own, position);
    }
    for (int c = 0; c < kHead / exact::kLanes; ++c) {
      const float right = tile.Get(position, exact::LaneOfRow() + exact::kLanes * c);
      for (int i = 0; i < kOwn; ++i) sums[i][c] = exact::MulAdd(left[i], right, sums[i][c]);
    }
  }
}

// Stores the thread's rows, each times its factor. Zeros become positive, since the sign of an
// empty sum depends on the products that were left out.
template <int kHead>
TESSERA_DEVICE void StoreOwn(const Sums<kHead>& sums, const float (&factors)[kOwn],
                             const AttentionShape& shape, int64_t batch, int64_t head, int first,
                             const Heads<float>& to) {
  for (int i = 0; i < kOwn; ++i) {
    const int t = first + FirstOwn() + i;
    if (t >= shape.sequence) return;
    for (int c = 0; c < kHead / exact::kLanes; ++c) {
      const int d = exact::LaneOfRow() + exact::kLanes * c;
      if (d < shape.head_size) to.Row(batch, t, head)[d] = sums[i][c] * factors[i] + 0.0f;
    }
  }
}

// Calls body(i, j, query, key) for the keys of the thread's rows and lane that the rows see, and
// hidden(i, j) for the others.
template <typename Body, typename Hidden>
TESSERA_DEVICE void ForSeen(int first_query, int first_key, const Body& body,
                            const Hidden& hidden) {
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int query = first_query + FirstOwn() + i;
#pragma unroll
    for (int j = 0; j < kTileKeys; ++j) {
      const int key = first_key + exact::LaneOfRow() + exact::kLanes * j;
      if (key <= query) {
        body(i, j, query, key);
      } else {
        hidden(i, j);
      }
    }
  }
}

// The dropout factors of a head.
class HeadFactors {
 public:
  TESSERA_DEVICE HeadFactors(const AttentionShape& shape, int64_t batch)
      : shape_(shape),
        drops_(shape.key.threshold > 0),
        factors_(shape.key, shape.first_sample + batch) {}
  // Returns 1 without dropout.
  TESSERA_DEVICE float Of(int head, int query, int key) {
    return drops_ ? factors_.Of(shape_.DropoutIndex(head, query) + static_cast<uint64_t>(key))
                  : 1.0f;
  }

 private:
  const AttentionShape& shape_;
  const bool drops_;
  DropoutFactors factors_;
};

template <int kHead>
TESSERA_KERNEL void ExactAttentionForward(AttentionShape shape, Heads<float> q, Heads<float> k,
                                          Heads<float> v, Heads<float> out, float* log_sum_exp) {
  const int head = simt::BlockY(), batch = simt::BlockZ(), first_query = simt::BlockX() * kTile;
  const int end = simt::Min(shape.sequence, first_query + kTile);
  simt::SharedMemory memory;
  const ExactTile<kHead> queries(memory), others(memory);
  const ScoreTile powers(memory);
  LoadTile(q, shape, batch, head, first_query, queries);
  // Calls body(first_key, scores) for each tile of keys.
  const auto for_scores = [&](const auto& body) {
    for (int first = 0; first < end; first += kTile) {
      LoadTile(k, shape, batch, shape.KeyHead(head), first, others);
      simt::SyncThreads();
      Scores scores;
      MultiplyRows(queries, others, shape.head_size, scores);
      simt::SyncThreads();
      body(first, scores);
    }
  };

  float maxima[kOwn], sums[kOwn] = {};
  for (float& max : maxima) max = -exact::kInfinity;
  for_scores([&](int first, const Scores& scores) {
    ForSeen(
        first_query, first,
        [&](int i, int j, int, int) { maxima[i] = exact::Max(scores[i][j], maxima[i]); },
        [](int, int) {});
  });
  for (float& max : maxima) max = exact::MaxOfLanes(max) * shape.scale_log2;

  HeadFactors factors(shape, batch);
  Sums<kHead> outs = {};
  for_scores([&](int first, const Scores& scores) {
    const auto set = [&](int i, int j, float power) {
      powers.Set(FirstOwn() + i, exact::LaneOfRow() + exact::kLanes * j, power);
    };
    ForSeen(
        first_query, first,
        [&](int i, int j, int query, int key) {
          const float power = exact::Exp2(exact::MulSub(scores[i][j], shape.scale_log2, maxima[i]));
          sums[i] += power;
          set(i, j, power * factors.Of(head, query, key));
        },
        [&](int i, int j) { set(i, j, 0.0f); });
    LoadTile(v, shape, batch, shape.KeyHead(head), first, others);
    simt::SyncThreads();
    AddPositions</*kTransposed=*/false>(powers, others, simt::Min(kTile, end - first), outs);
    simt::SyncThreads();
  });
  for (int i = 0; i < kOwn; ++i) {
    const float sum = exact::SumOfLanes(sums[i]);
    const int t = first_query + FirstOwn() + i;
    if (t < shape.sequence && exact::LaneOfRow() == 0) {
      log_sum_exp[(int64_t{batch} * shape.heads + head) * shape.sequence + t] =
          exact::MulAdd(maxima[i], exact::kLn2, exact::Log(sum));
    }
    sums[i] = 1.0f / sum;
  }
  StoreOwn<kHead>(outs, sums, shape, batch, head, first_query, out);
}

struct ExactAttentionGradient {
  AttentionShape shape;
  Heads<float> d_out, q, k, v, out;
  const float* log_sum_exp;
};

// Computes p (with dropout) and d_s for the thread's rows of a tile of queries and the keys of its
// lane, from the tiles that have been loaded.
template <int kHead>
class ExactGradients {
 public:
  TESSERA_DEVICE ExactGradients(const ExactAttentionGradient& op, int64_t batch)
      : op_(op), batch_(batch), factors_(op.shape, batch) {}

  // Prepares a tile of queries: their row sums, and the products of their rows of d_out and out.
  TESSERA_DEVICE void Begin(int head, int first_query, const ExactTile<kHead>& d_outs) {
    head_ = head;
    first_query_ = first_query;
    for (int i = 0; i < kOwn; ++i) {
      const int t = first_query + FirstOwn() + i;
      const bool inside = t < op_.shape.sequence;
      const float* const out = op_.out.Row(batch_, inside ? t : 0, head);
      deltas_[i] =
          exact::SumInLanes(0, inside ? op_.shape.head_size : 0, [&](int64_t d, float sum) {
            return exact::MulAdd(d_outs.Get(FirstOwn() + i, static_cast<int>(d)), out[d], sum);
          });
      const int64_t row = (batch_ * op_.shape.heads + head) * op_.shape.sequence + t;
      log2_sums_[i] = inside ? op_.log_sum_exp[row] * std::numbers::log2e_v<float> : 0.0f;
    }
  }

  // Calls set(row, column, p, d_s) for the thread's elements of the tile, zeros where keys are not
  // seen.
  template <typename Set>
  TESSERA_DEVICE void Compute(const ExactTile<kHead>& queries, const ExactTile<kHead>& d_outs,
                              const ExactTile<kHead>& keys, const ExactTile<kHead>& values,
                              int first_key, const Set& set) {
    Scores scores, products;
    MultiplyRows(queries, keys, op_.shape.head_size, scores);
    MultiplyRows(d_outs, values, op_.shape.head_size, products);
    const auto at = [&](int i, int j, float p, float d_s) {
      set(FirstOwn() + i, exact::LaneOfRow() + exact::kLanes * j, p, d_s);
    };
    ForSeen(
        first_query_, first_key,
        [&](int i, int j, int query, int key) {
          const float p =
              exact::Exp2(exact::MulSub(scores[i][j], op_.shape.scale_log2, log2_sums_[i]));
          const float factor = factors_.Of(head_, query, key);
          at(i, j, p * factor, p * exact::MulSub(products[i][j], factor, deltas_[i]));
        },
        [&](int i, int j) { at(i, j, 0.0f, 0.0f); });
  }

 private:
  const ExactAttentionGradient& op_;
  const int64_t batch_;
  HeadFactors factors_;
  int head_ = 0, first_query_ = 0;
  float deltas_[kOwn], log2_sums_[kOwn];
};

template <int kHead>
TESSERA_KERNEL void ExactAttentionBackwardQueries(ExactAttentionGradient op, Heads<float> d_q) {
  const AttentionShape& shape = op.shape;
  const int head = simt::BlockY(), batch = simt::BlockZ(), first_query = simt::BlockX() * kTile;
  const int end = simt::Min(shape.sequence, first_query + kTile);
  simt::SharedMemory memory;
  const ExactTile<kHead> queries(memory), d_outs(memory), keys(memory), values(memory);
  const ScoreTile d_scores(memory);
  LoadTile(op.q, shape, batch, head, first_query, queries);
  LoadTile(op.d_out, shape, batch, head, first_query, d_outs);
  simt::SyncThreads();
  ExactGradients<kHead> gradients(op, batch);
  gradients.Begin(head, first_query, d_outs);
  Sums<kHead> sums = {};
  for (int first = 0; first < end; first += kTile) {
    LoadTile(op.k, shape, batch, shape.KeyHead(head), first, keys);
    LoadTile(op.v, shape, batch, shape.KeyHead(head), first, values);
    simt::SyncThreads();
    gradients.Compute(
        queries, d_outs, keys, values, first,
        [&](int row, int column, float, float d_s) { d_scores.Set(row, column, d_s); });
    simt::SyncThreads();
    AddPositions</*kTransposed=*/false>(d_scores, keys, simt::Min(kTile, end - first), sums);
    simt::SyncThreads();
  }
  const float scale = shape.scale;
  StoreOwn<kHead>(sums, {scale, scale, scale, scale}, shape, batch, head, first_query, d_q);
}

// Sums over the query heads of a key head, and their queries, in ascending order.
template <int kHead>
TESSERA_KERNEL void ExactAttentionBackwardKeys(ExactAttentionGradient op, Heads<float> d_k,
                                               Heads<float> d_v) {
  const AttentionShape& shape = op.shape;
  const int kv_head = simt::BlockY(), batch = simt::BlockZ(), first_key = simt::BlockX() * kTile;
  const int group = shape.heads / shape.kv_heads;
  simt::SharedMemory memory;
  const ExactTile<kHead> queries(memory), d_outs(memory), keys(memory), values(memory);
  const ScoreTile scores(memory), d_scores(memory);
  LoadTile(op.k, shape, batch, kv_head, first_key, keys);
  LoadTile(op.v, shape, batch, kv_head, first_key, values);
  ExactGradients<kHead> gradients(op, batch);
  Sums<kHead> key_sums = {}, value_sums = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int first = first_key; first < shape.sequence; first += kTile) {
      LoadTile(op.q, shape, batch, head, first, queries);
      LoadTile(op.d_out, shape, batch, head, first, d_outs);
      simt::SyncThreads();
      gradients.Begin(head, first, d_outs);
      gradients.Compute(queries, d_outs, keys, values, first_key,
                        [&](int row, int column, float p, float d_s) {
                          scores.Set(row, column, p);
                          d_scores.Set(row, column, d_s);
                        });
      simt::SyncThreads();
      const int count = simt::Min(kTile, shape.sequence - first);
      AddPositions</*kTransposed=*/true>(scores, d_outs, count, value_sums);
      AddPositions</*kTransposed=*/true>(d_scores, queries, count, key_sums);
      simt::SyncThreads();
    }
  }
  const float scale = shape.scale;
  StoreOwn<kHead>(key_sums, {scale, scale, scale, scale}, shape, batch, kv_head, first_key, d_k);
  StoreOwn<kHead>(value_sums, {1, 1, 1, 1}, shape, batch, kv_head, first_key, d_v);
}

// The shared memory of a pass, at most as much as the fast kernels have. Each tile begins at a
// multiple of 16 bytes.
template <int kHead>
constexpr int64_t ExactBytes(int heads, int scores) {
  return heads * (ExactTile<kHead>::kBytes + 16) + scores * (ScoreTile::kBytes + 16);
}

// Calls body with the padded size of heads.
template <typename Body>
void WithExactHead(const AttentionShape& shape, const Body& body) {
  CHECK_LE(shape.head_size, kMaxHeadSize);
  if (shape.head_size <= 32) return body.template operator()<32>();
  if (shape.head_size <= 64) return body.template operator()<64>();
  body.template operator()<128>();
}

}  // namespace

void DeviceKernels::RunExact(const ops::AttentionForward& op) {
  const Operation here(*this, "AttentionForward", op.q, op.k, op.v);
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  WithExactHead(shape, [&]<int kHead>() {
    constexpr int64_t kBytes = ExactBytes<kHead>(2, 1);
    static_assert(kBytes <= AttentionSharedBytes(DType::kF32, kHead, /*backward=*/false));
    simt::Launch<ExactAttentionForward<kHead>>(
        {simt::BlocksOf(shape.sequence, kTile), shape.heads, shape.batch}, kExactThreads, kBytes,
        stream(), shape, AsHeads<float>(op.q), AsHeads<float>(op.k), AsHeads<float>(op.v),
        AsHeads<float>(op.out), op.log_sum_exp.as<float>());
  });
}

void DeviceKernels::RunExact(const ops::AttentionBackward& op) {
  const Operation here(*this, "AttentionBackward", op.d_out, op.q, op.k, op.v);
  const AttentionShape shape = MakeAttentionShape(op.options, op.q, op.k);
  const ExactAttentionGradient gradient = {shape,
                                           AsHeads<float>(op.d_out),
                                           AsHeads<float>(op.q),
                                           AsHeads<float>(op.k),
                                           AsHeads<float>(op.v),
                                           AsHeads<float>(op.out),
                                           op.log_sum_exp.as<float>()};
  const int64_t tiles = simt::BlocksOf(shape.sequence, kTile);
  WithExactHead(shape, [&]<int kHead>() {
    constexpr int64_t kBytes = ExactBytes<kHead>(4, 2);
    static_assert(kBytes <= AttentionSharedBytes(DType::kF32, kHead, /*backward=*/true));
    simt::Launch<ExactAttentionBackwardQueries<kHead>>({tiles, shape.heads, shape.batch},
                                                       kExactThreads, ExactBytes<kHead>(4, 1),
                                                       stream(), gradient, AsHeads<float>(op.d_q));
    simt::Launch<ExactAttentionBackwardKeys<kHead>>({tiles, shape.kv_heads, shape.batch},
                                                    kExactThreads, kBytes, stream(), gradient,
                                                    AsHeads<float>(op.d_k), AsHeads<float>(op.d_v));
  });
}

}  // namespace tessera::cuda
