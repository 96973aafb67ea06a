// Attention's forward pass by warpgroups, on the simulated device: it agrees with the reference as
// closely as the pass by warps does, and has the same bits in every order of blocks and threads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
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

using testing::ExpectBitwiseEqual;
using testing::ExpectClose;

struct Sizes {
  int64_t batch, sequence, heads, kv_heads, head_size;
  double dropout = 0;
  DType dtype = DType::kBF16;
  double deviation = 1;  // of queries and keys
};

std::string ToString(const Sizes& s) {
  return ShapeToString({s.batch, s.sequence, s.heads, s.kv_heads, s.head_size});
}

struct Outputs {
  Tensor out, log_sum_exp;
  simt::Counters counters;
};

class AttentionWarpgroupsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Backend> Device(bool warpgroups, uint64_t seed = 1) {
    return MakeSimulatedBackend({.seed = seed}, DeviceNumerics::kFast,
                                {.attention_by_warpgroups = warpgroups});
  }

  // Makes q, k and v, views into one fused buffer as in the models.
  void Make(const Sizes& s) {
    sizes_ = s;
    qkv_ = random_.Normal(s.dtype, {s.batch, s.sequence, s.heads + 2 * s.kv_heads, s.head_size}, 0,
                          s.deviation);
  }

  TensorView Part(int i) const {
    const int64_t cuts[] = {0, sizes_.heads, sizes_.heads + sizes_.kv_heads,
                            sizes_.heads + 2 * sizes_.kv_heads};
    return qkv_.view().Slice(2, cuts[i], cuts[i + 1]);
  }

  Outputs Run(Backend& backend, DType out, DType statistic) const {
    const Sizes& s = sizes_;
    Outputs outputs = {Tensor(out, {s.batch, s.sequence, s.heads, s.head_size}),
                       Tensor(statistic, {s.batch, s.heads, s.sequence}),
                       {}};
    const AttentionOptions options = {
        .scale = 1 / std::sqrt(static_cast<double>(s.head_size)),
        .dropout_probability = s.dropout,
        .dropout_stream = {.seed = 5, .use = RandomUse::kDropout, .stream = 77}};
    simt::TakeCounters();
    backend.AttentionForward(
        {options, Part(0), Part(1), Part(2), outputs.out, outputs.log_sum_exp});
    EXPECT_EQ(backend.Synchronize(), absl::OkStatus());
    outputs.counters = simt::TakeCounters();
    return outputs;
  }
  Outputs Run(bool warpgroups, uint64_t seed = 1) const {
    return Run(*Device(warpgroups, seed), sizes_.dtype, DType::kF32);
  }

  testing::RandomTensors random_{20261129};
  Sizes sizes_ = {};
  Tensor qkv_;
};

// Sequences that end within a tile, a warpgroup and a block, and at their ends; several query heads
// of a key head; scores so far apart that maxima change from tile to tile.
TEST_F(AttentionWarpgroupsTest, AgreesWithTheReferenceInEveryOrder) {
  const auto reference = MakeReferenceBackend();
  for (const Sizes& s : std::vector<Sizes>{{1, 1, 1, 1, 64},
                                           {2, 5, 3, 3, 64},
                                           {2, 64, 2, 2, 64},
                                           {1, 65, 1, 1, 64},
                                           {1, 96, 1, 1, 64},
                                           {1, 193, 1, 1, 64},
                                           {2, 130, 4, 2, 64},
                                           {1, 390, 2, 1, 64},
                                           {.batch = 1,
                                           .sequence = 300,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .head_size = 64,
                                           .deviation = 4},
                                           {1, 1, 1, 1, 128},
                                           {2, 33, 2, 2, 128},
                                           {1, 64, 1, 1, 128},
                                           {1, 130, 1, 1, 128},
                                           {1, 200, 4, 2, 128},
                                           {1, 320, 2, 1, 128}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    const Outputs expected = Run(*reference, DType::kF64, DType::kF64);
    const Outputs first = Run(/*warpgroups=*/true);
    for (const bool warpgroups : {true, false}) {
      const Outputs outputs = Run(warpgroups, /*seed=*/2);
      ExpectClose(outputs.out, expected.out, {.relative = 0.012, .of_maximum = 0.008});
      ExpectClose(outputs.log_sum_exp, expected.log_sum_exp,
                  {.relative = 8e-5, .of_maximum = 1.6e-5});
      if (!warpgroups) continue;
      ExpectBitwiseEqual(outputs.out, first.out);
      ExpectBitwiseEqual(outputs.log_sum_exp, first.log_sum_exp);
    }
    EXPECT_EQ(first.counters.blocks, s.batch * s.heads * ((s.sequence + 127) / 128));
    EXPECT_EQ(first.counters.threads, 256 * first.counters.blocks);
  }
}

TEST_F(AttentionWarpgroupsTest, HasTheSameBitsInManyOrders) {
  Make({1, 270, 2, 1, 64});
  const Outputs first = Run(/*warpgroups=*/true);
  for (uint64_t seed = 2; seed < 8; ++seed) {
    ExpectBitwiseEqual(Run(/*warpgroups=*/true, seed).out, first.out);
  }
}

TEST_F(AttentionWarpgroupsTest, OtherOperandsAreLeftToWarps) {
  for (const Sizes& s : std::vector<Sizes>{{1, 70, 2, 2, 64, 0.25},
                                           {1, 70, 2, 2, 64, 0, DType::kF32},
                                           {1, 70, 2, 2, 32},
                                           {1, 70, 1, 1, 96}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    const Outputs outputs = Run(/*warpgroups=*/true);
    EXPECT_EQ(outputs.counters.threads, 128 * outputs.counters.blocks);
    ExpectBitwiseEqual(outputs.out, Run(/*warpgroups=*/false).out);
  }
}

// As many blocks as the kernel is compiled for fit on an H100, besides a KiB for each.
TEST_F(AttentionWarpgroupsTest, TwoBlocksShareAMultiprocessor) {
  const auto bytes = [](int64_t head) {
    return WarpgroupAttentionBytes(AttentionPass::kForward, head);
  };
  EXPECT_EQ(bytes(64), 1024 + 16384 + 49152);
  EXPECT_EQ(bytes(128), 1024 + 32768 + 65536);
  EXPECT_LE(2 * (bytes(128) + 1024), 228 << 10);
}

}  // namespace
}  // namespace tessera::cuda
