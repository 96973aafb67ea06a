// Attention's backward pass in one kernel, and by warpgroups, on the simulated device: both agree
// with the reference, and have the same bits in every order of blocks and threads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/attention_memory.h"
#include "compute/kernels/cuda/products.h"
#include "compute/kernels/cuda/testing/simt_host.h"
#include "compute/kernels/cuda/testing/simulated_backend.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera::cuda {
namespace {

using testing::Converted;
using testing::ExpectBitwiseEqual;
using testing::ExpectClose;

constexpr testing::Tolerance kClose = {.relative = 0.012, .of_maximum = 0.008};

struct Sizes {
  int64_t batch, sequence, heads, kv_heads, head_size;
  double dropout = 0;
  double deviation = 1;  // of queries and keys
  DType dtype = DType::kBF16;
};

std::string ToString(const Sizes& s) {
  return ShapeToString({s.batch, s.sequence, s.heads, s.kv_heads, s.head_size});
}

// d_q, d_k and d_v as views into one tensor, and what the backward pass has run.
struct Gradients {
  Tensor all;
  simt::Counters counters;
};

class AttentionBackwardTest : public ::testing::Test {
 protected:
  void Make(const Sizes& s) {
    const Shape fused = {s.batch, s.sequence, s.heads + 2 * s.kv_heads, s.head_size};
    sizes_ = s;
    qkv_ = random_.Normal(s.dtype, fused, 0, s.deviation);
    d_out_ = random_.Normal(s.dtype, {s.batch, s.sequence, s.heads, s.head_size});
    options_ = {.scale = 1 / std::sqrt(static_cast<double>(s.head_size)),
                .dropout_probability = s.dropout,
                .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77}};
    // The reference's outputs and statistics, so that every way starts from the same numbers.
    const auto reference = MakeReferenceBackend();
    const Tensor out(DType::kF64, d_out_.view().shape());
    const Tensor log_sum_exp(DType::kF64, {s.batch, s.heads, s.sequence});
    reference->AttentionForward(
        {options_, Part(qkv_, 0), Part(qkv_, 1), Part(qkv_, 2), out, log_sum_exp});
    expected_ = Tensor(DType::kF64, fused);
    reference->AttentionBackward({options_, d_out_, Part(qkv_, 0), Part(qkv_, 1), Part(qkv_, 2),
                                  out, log_sum_exp, Part(expected_, 0), Part(expected_, 1),
                                  Part(expected_, 2)});
    out_ = Converted(out, s.dtype);
    log_sum_exp_ = Converted(log_sum_exp, DType::kF32);
  }

  TensorView Part(const Tensor& x, int i) const {
    const int64_t cuts[] = {0, sizes_.heads, sizes_.heads + sizes_.kv_heads,
                            sizes_.heads + 2 * sizes_.kv_heads};
    return x.view().Slice(2, cuts[i], cuts[i + 1]);
  }

  Gradients Run(const ProductChoices& choices, uint64_t seed = 1) const {
    const auto backend = MakeSimulatedBackend({.seed = seed}, DeviceNumerics::kFast, choices);
    Gradients gradients = {Tensor(sizes_.dtype, qkv_.view().shape()), {}};
    simt::TakeCounters();
    backend->AttentionBackward({options_, d_out_, Part(qkv_, 0), Part(qkv_, 1), Part(qkv_, 2), out_,
                                log_sum_exp_, Part(gradients.all, 0), Part(gradients.all, 1),
                                Part(gradients.all, 2)});
    EXPECT_EQ(backend->Synchronize(), absl::OkStatus());
    gradients.counters = simt::TakeCounters();
    return gradients;
  }

  const ProductChoices two_kernels_ = {}, at_once_ = {.attention_at_once = true},
                       warpgroups_ = {.attention_gradients_by_warpgroups = true};
  testing::RandomTensors random_{20261129};
  Sizes sizes_ = {};
  AttentionOptions options_;
  Tensor qkv_, d_out_, out_, log_sum_exp_, expected_;
};

// Heads that are padded, sequences that end within tiles and blocks, several query heads of a key
// head, several samples.
TEST_F(AttentionBackwardTest, AtOnceAgreesWithTheReferenceInEveryOrder) {
  for (const Sizes& s : std::vector<Sizes>{{1, 1, 1, 1, 8},
                                           {2, 5, 3, 3, 16},
                                           {2, 64, 2, 2, 64},
                                           {1, 128, 1, 1, 64},
                                           {2, 130, 4, 2, 40},
                                           {1, 417, 1, 1, 64},
                                           {1, 33, 2, 2, 128},
                                           {1, 290, 2, 1, 72}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    const Gradients first = Run(at_once_);
    ExpectClose(first.all, expected_, kClose);
    ExpectBitwiseEqual(Run(at_once_, /*seed=*/2).all, first.all);
    // Scores are computed by blocks of 128 keys alone.
    const int64_t statistics = s.batch * s.heads * ((s.sequence + 63) / 64);
    const int64_t blocks = s.batch * s.kv_heads * ((s.sequence + 127) / 128);
    EXPECT_EQ(first.counters.blocks, statistics + blocks + 1);
  }
}

// Sequences that end within a tile, a warpgroup and a block, and at their ends; several query heads
// of a key head, and several key heads; scores so far apart that weights of hidden keys would
// overflow.
TEST_F(AttentionBackwardTest, WarpgroupsAgreeWithTheReferenceInEveryOrder) {
  for (const Sizes& s : std::vector<Sizes>{{1, 1, 1, 1, 64},
                                           {2, 33, 2, 2, 64},
                                           {1, 64, 1, 1, 64},
                                           {1, 97, 4, 2, 64},
                                           {1, 128, 1, 1, 64},
                                           {1, 225, 2, 1, 64},
                                           {.batch = 1,
                                           .sequence = 190,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .head_size = 64,
                                           .deviation = 6},
                                           {1, 5, 1, 1, 128},
                                           {2, 65, 2, 1, 128},
                                           {1, 200, 2, 2, 128}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    const Gradients first = Run(warpgroups_);
    for (int i = 0; i < 3; ++i) ExpectClose(Part(first.all, i), Part(expected_, i), kClose);
    ExpectBitwiseEqual(Run(warpgroups_, /*seed=*/2).all, first.all);
    const int64_t statistics = s.batch * s.heads * ((s.sequence + 63) / 64);
    const int64_t own_queries = s.head_size == 64 ? 128 : 192, own_keys = 320 - own_queries;
    const int64_t by_query = s.batch * s.heads * ((s.sequence + own_queries - 1) / own_queries);
    const int64_t by_key = s.batch * s.kv_heads * ((s.sequence + own_keys - 1) / own_keys);
    EXPECT_EQ(first.counters.blocks, statistics + by_query + by_key);
    EXPECT_EQ(first.counters.threads,
              128 * statistics + 2 * (own_queries * by_query + own_keys * by_key));
  }
}

// d_v is computed in the same order either way.
TEST_F(AttentionBackwardTest, AtOnceHasTheValuesGradientsOfTwoKernels) {
  Make({1, 140, 2, 1, 64});
  const Gradients one = Run(at_once_), two = Run(two_kernels_);
  ExpectBitwiseEqual(Part(one.all, 2), Part(two.all, 2));
  EXPECT_EQ(two.counters.blocks, 2 * 3 + 2 * 3 + 3);
}

TEST_F(AttentionBackwardTest, AtOnceHasTheSameBitsInManyOrders) {
  Make({1, 300, 2, 1, 8});
  const Gradients first = Run(at_once_);
  for (uint64_t seed = 2; seed < 10; ++seed) ExpectBitwiseEqual(Run(at_once_, seed).all, first.all);
}

TEST_F(AttentionBackwardTest, OtherOperandsAreLeftToTwoKernels) {
  for (const Sizes& s : std::vector<Sizes>{{1, 70, 2, 2, 64, 0.25}, {1, 70, 2, 2, 20}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    ExpectBitwiseEqual(Run(at_once_).all, Run(two_kernels_).all);
  }
  for (const Sizes& s : std::vector<Sizes>{{1, 40, 1, 1, 64, 0.25},
                                           {1, 40, 1, 1, 32},
                                           {1, 40, 1, 1, 96},
                                           {1, 40, 1, 1, 64, 0, 1, DType::kF32}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    const Gradients gradients = Run(warpgroups_);
    EXPECT_EQ(gradients.counters.threads, 128 * gradients.counters.blocks);
    ExpectBitwiseEqual(gradients.all, Run(two_kernels_).all);
  }
}

// As many blocks as the kernels are compiled for fit on an H100, besides a KiB for each.
TEST_F(AttentionBackwardTest, BlocksOfWarpgroupsFitAMultiprocessor) {
  for (const AttentionPass pass : {AttentionPass::kBackwardQueries, AttentionPass::kBackwardKeys}) {
    for (const int64_t head : {64, 128}) {
      const int64_t bytes = WarpgroupAttentionBytes(pass, head);
      EXPECT_LE(WarpgroupShapeOf(pass, head).blocks * (bytes + 1024), 228 << 10);
    }
  }
  EXPECT_EQ(WarpgroupAttentionBytes(AttentionPass::kBackwardQueries, 64), 1024 + 32768 + 32768);
  EXPECT_EQ(WarpgroupAttentionBytes(AttentionPass::kBackwardKeys, 64), 1024 + 49152 + 32768 + 1024);
  EXPECT_EQ(WarpgroupAttentionBytes(AttentionPass::kBackwardQueries, 128), 1024 + 98304 + 65536);
}

}  // namespace
}  // namespace tessera::cuda
