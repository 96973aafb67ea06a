// Attention's backward pass in one kernel, on the simulated device: it agrees with the reference,
// has the same bits in every order of blocks, and takes the memory that is announced.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
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

using testing::Converted;
using testing::ExpectBitwiseEqual;
using testing::ExpectClose;

struct Sizes {
  int64_t batch, sequence, heads, kv_heads, head_size;
  double dropout = 0;
};

std::string ToString(const Sizes& s) {
  return ShapeToString({s.batch, s.sequence, s.heads, s.kv_heads, s.head_size});
}

// d_q, d_k and d_v as views into one tensor, and what the backward pass has run.
struct Gradients {
  Tensor all;
  simt::Counters counters;
};

class AttentionAtOnceTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Backend> Device(bool at_once, uint64_t seed = 1) {
    return MakeSimulatedBackend({.seed = seed}, DeviceNumerics::kFast,
                                {.attention_at_once = at_once});
  }

  void Make(const Sizes& s) {
    const Shape fused = {s.batch, s.sequence, s.heads + 2 * s.kv_heads, s.head_size};
    sizes_ = s;
    qkv_ = random_.Normal(DType::kBF16, fused);
    d_out_ = random_.Normal(DType::kBF16, {s.batch, s.sequence, s.heads, s.head_size});
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
    out_ = Converted(out, DType::kBF16);
    log_sum_exp_ = Converted(log_sum_exp, DType::kF32);
  }

  TensorView Part(const Tensor& x, int i) const {
    const int64_t cuts[] = {0, sizes_.heads, sizes_.heads + sizes_.kv_heads,
                            sizes_.heads + 2 * sizes_.kv_heads};
    return x.view().Slice(2, cuts[i], cuts[i + 1]);
  }

  Gradients Run(Backend& backend) const {
    Gradients gradients = {Tensor(DType::kBF16, qkv_.view().shape()), {}};
    simt::TakeCounters();
    backend.AttentionBackward({options_, d_out_, Part(qkv_, 0), Part(qkv_, 1), Part(qkv_, 2), out_,
                               log_sum_exp_, Part(gradients.all, 0), Part(gradients.all, 1),
                               Part(gradients.all, 2)});
    EXPECT_EQ(backend.Synchronize(), absl::OkStatus());
    gradients.counters = simt::TakeCounters();
    return gradients;
  }

  testing::RandomTensors random_{20261129};
  Sizes sizes_ = {};
  AttentionOptions options_;
  Tensor qkv_, d_out_, out_, log_sum_exp_, expected_;
};

// Heads that are padded, sequences that end within tiles and blocks, several query heads of a key
// head, several samples.
TEST_F(AttentionAtOnceTest, AgreesWithTheReferenceInEveryOrder) {
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
    const Gradients first = Run(*Device(true));
    ExpectClose(first.all, expected_, {.relative = 0.012, .of_maximum = 0.008});
    ExpectBitwiseEqual(Run(*Device(true, 2)).all, first.all);
    // Scores are computed by blocks of 128 keys alone.
    const int64_t statistics = s.batch * s.heads * ((s.sequence + 63) / 64);
    const int64_t blocks = s.batch * s.kv_heads * ((s.sequence + 127) / 128);
    EXPECT_EQ(first.counters.blocks, statistics + blocks + 1);
  }
}

// d_v is computed in the same order either way.
TEST_F(AttentionAtOnceTest, HasTheValuesGradientsOfTwoKernels) {
  Make({1, 140, 2, 1, 64});
  const Gradients one = Run(*Device(true)), two = Run(*Device(false));
  ExpectBitwiseEqual(Part(one.all, 2), Part(two.all, 2));
  EXPECT_EQ(two.counters.blocks, 2 * 3 + 2 * 3 + 3);
}

TEST_F(AttentionAtOnceTest, HasTheSameBitsInManyOrders) {
  Make({1, 300, 2, 1, 8});
  const Gradients first = Run(*Device(true));
  for (uint64_t seed = 2; seed < 10; ++seed) {
    ExpectBitwiseEqual(Run(*Device(true, seed)).all, first.all);
  }
}

TEST_F(AttentionAtOnceTest, OtherOperandsAreLeftToTwoKernels) {
  for (const Sizes& s : std::vector<Sizes>{{1, 70, 2, 2, 64, 0.25}, {1, 70, 2, 2, 20}}) {
    SCOPED_TRACE(ToString(s));
    Make(s);
    ExpectBitwiseEqual(Run(*Device(true)).all, Run(*Device(false)).all);
  }
}

}  // namespace
}  // namespace tessera::cuda
