// Forward formulas against independent formulations of the same mathematics, and the contract of
// the interface: dtypes, strides, keys of the dropout masks, shards of the vocabulary.

#include "compute/kernels/reference/reference_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <iterator>
#include <limits>

#include "compute/kernels/reference/array.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/bfloat16.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

using testing::At;
using testing::Cloned;
using testing::Converted;
using testing::ExpectBitwiseEqual;
using testing::ExpectClose;

constexpr DType kF32 = DType::kF32, kF64 = DType::kF64, kBF16 = DType::kBF16;

class ReferenceBackendTest : public ::testing::Test {
 protected:
  testing::RandomTensors random_{20240608};
  std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
};

double RoundTrip(double value) { return static_cast<float>(reference::RoundToBFloat16(value)); }

TEST(RoundToBFloat16Test, RoundsOnceToNearestEven) {
  const double kUlp = 1.0 / 128;  // of bfloat16 in [1, 2)
  EXPECT_EQ(RoundTrip(1 + kUlp / 2), 1);
  EXPECT_EQ(RoundTrip(1 + kUlp * 3 / 2), 1 + 2 * kUlp);
  // Closer to a tie than fp32 can resolve: rounding through fp32 would give the wrong result.
  EXPECT_EQ(RoundTrip(1 + kUlp / 2 + 1e-12), 1 + kUlp);
  EXPECT_EQ(RoundTrip(1 + kUlp * 3 / 2 - 1e-12), 1 + kUlp);
  EXPECT_EQ(RoundTrip(-1 - kUlp / 2 - 1e-12), -1 - kUlp);
  EXPECT_EQ(RoundTrip(1e300), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(RoundTrip(std::nan(""))));
  EXPECT_TRUE(std::signbit(RoundTrip(-1e-300)));
  EXPECT_EQ(RoundTrip(-1e-300), 0);
}

TEST_F(ReferenceBackendTest, CopyConvertsAnyStridesAndKeepsBitsOfEqualDtypes) {
  const Tensor x = random_.Normal(kF64, {3, 4, 5});
  const Tensor narrow(kBF16, {5, 4, 3});
  backend_->Copy({x, narrow.view().Transpose(0, 2)});
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(At(narrow, {j, 2, i}), RoundTrip(At(x, {i, 2, j})));
  }
  const Tensor payload(kF32, {2});
  payload.view().as<float>()[0] = std::bit_cast<float>(0x7f812345u);  // a signalling NaN
  payload.view().as<float>()[1] = -0.0f;
  ExpectBitwiseEqual(Cloned(payload), payload);
  const Tensor ids = random_.Ids({6}, -1000000000, 1000000000);
  ExpectBitwiseEqual(Cloned(ids), ids);
}

TEST_F(ReferenceBackendTest, SimpleOperations) {
  const Tensor a = random_.Normal(kF32, {2, 3}), b = random_.Normal(kBF16, {2, 3});
  const Tensor sum(kF64, {2, 3}), filled(kBF16, {2, 3}), rows(kF64, {3});
  backend_->Add({a, b, sum});
  backend_->Fill({filled, 2.5});
  backend_->SumRows({a, rows, false});
  backend_->SumRows({b, rows, true});
  const Tensor scaled = Cloned(a);
  backend_->Scale({scaled, -2});
  double total = 0, squares = 0;
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(At(sum, {r, c}), At(a, {r, c}) + At(b, {r, c}));
      EXPECT_EQ(At(filled, {r, c}), 2.5);
      EXPECT_EQ(At(scaled, {r, c}), -2 * At(a, {r, c}));
      total += At(a, {r, c});
      squares += At(a, {r, c}) * At(a, {r, c});
    }
  }
  EXPECT_EQ(At(rows, {1}), At(a, {0, 1}) + At(a, {1, 1}) + (At(b, {0, 1}) + At(b, {1, 1})));
  EXPECT_EQ(backend_->Sum({a}), total);
  EXPECT_EQ(backend_->SumOfSquares({a}), squares);
}

TEST_F(ReferenceBackendTest, MatMulOverTransposedOperandsOfMixedDtypes) {
  const Tensor a = random_.Normal(kBF16, {4, 3}), b = random_.Normal(kF32, {5, 4});
  const Tensor bias = random_.Normal(kBF16, {5}), start = random_.Normal(kF32, {3, 5});
  const Tensor c = Cloned(start);
  backend_->MatMul(
      {a.view().Transpose(0, 1), b.view().Transpose(0, 1), c, /*accumulate=*/true, bias});
  for (int64_t m = 0; m < 3; ++m) {
    for (int64_t n = 0; n < 5; ++n) {
      double expected = At(start, {m, n}) + At(bias, {n});
      for (int64_t k = 0; k < 4; ++k) expected += At(a, {k, m}) * At(b, {n, k});
      EXPECT_NEAR(At(c, {m, n}), expected, 1e-6 * (1 + std::abs(expected)));
    }
  }
}

TEST_F(ReferenceBackendTest, EmbeddingShardsAddUpToTheWholeTable) {
  const Tensor table = random_.Normal(kBF16, {10, 4}), ids = random_.Ids({8}, 0, 10);
  const Tensor whole(kF64, {8, 4}), low(kF64, {8, 4}), high(kF64, {8, 4}), sum(kF64, {8, 4});
  backend_->EmbeddingForward({table, ids, 0, whole});
  backend_->EmbeddingForward({table.view().Slice(0, 0, 6), ids, 0, low});
  backend_->EmbeddingForward({table.view().Slice(0, 6, 10), ids, 6, high});
  backend_->Add({low, high, sum});
  ExpectBitwiseEqual(sum, whole);
  EXPECT_EQ(At(whole, {5, 2}), At(table, {static_cast<int64_t>(At(ids, {5})), 2}));
}

TEST_F(ReferenceBackendTest, NormsHaveUnitMoments) {
  const int64_t kChannels = 64;
  const Tensor x = random_.Normal(kF64, {3, kChannels}, 5, 3), ones(kF64, {kChannels});
  const Tensor zeros(kF64, {kChannels}), out(kF64, {3, kChannels}), mean(kF64, {3}),
      rstd(kF64, {3});
  backend_->Fill({ones, 1});
  backend_->LayerNormForward({x, ones, zeros, 0, out, mean, rstd});
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_NEAR(backend_->Sum({out.view().Slice(0, r, r + 1)}), 0, 1e-12);
    EXPECT_NEAR(backend_->SumOfSquares({out.view().Slice(0, r, r + 1)}), kChannels, 1e-10);
    EXPECT_NEAR(At(mean, {r}) * kChannels, backend_->Sum({x.view().Slice(0, r, r + 1)}), 1e-10);
  }
  backend_->RmsNormForward({x, ones, 0, out, rstd});
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_NEAR(backend_->SumOfSquares({out.view().Slice(0, r, r + 1)}), kChannels, 1e-10);
    EXPECT_NEAR(At(out, {r, 7}) / At(x, {r, 7}), At(rstd, {r}), 1e-14);
  }
}

TEST_F(ReferenceBackendTest, ActivationsHaveTheirKnownValues) {
  const Tensor x(kF64, {1, 4}), out(kF64, {1, 4}), gated(kF64, {1, 2});
  const double inputs[] = {-1, 0, 1, 3};
  for (int i = 0; i < 4; ++i) x.view().as<double>()[i] = inputs[i];
  backend_->GeluForward({x, out});
  // gelu(x, approximate="tanh") of PyTorch.
  EXPECT_NEAR(At(out, {0, 0}), -0.15880801, 1e-8);
  EXPECT_EQ(At(out, {0, 1}), 0);
  EXPECT_NEAR(At(out, {0, 2}), 0.84119199, 1e-8);
  EXPECT_NEAR(At(out, {0, 3}), 2.99636261, 1e-8);
  backend_->SwiGluForward({x, gated});  // gate -1, 0; up 1, 3
  EXPECT_NEAR(At(gated, {0, 0}), -1 / (1 + std::exp(1.0)), 1e-15);
  EXPECT_EQ(At(gated, {0, 1}), 0);
}

TEST_F(ReferenceBackendTest, RopeIsAComplexRotation) {
  const int64_t kSequence = 4, kHalf = 3;
  const Tensor cos(kF64, {kSequence, kHalf}), sin(kF64, {kSequence, kHalf});
  const auto angle = [](int64_t t, int64_t i) { return t * std::pow(10000.0, -i / 3.0); };
  for (int64_t t = 0; t < kSequence; ++t) {
    for (int64_t i = 0; i < kHalf; ++i) {
      cos.view().as<double>()[t * kHalf + i] = std::cos(angle(t, i));
      sin.view().as<double>()[t * kHalf + i] = std::sin(angle(t, i));
    }
  }
  const Tensor input = random_.Normal(kF64, {2, kSequence, 2, 2 * kHalf}), x = Cloned(input);
  backend_->Rope({cos, sin, /*inverse=*/false, x});
  for (int64_t t = 0; t < kSequence; ++t) {
    for (int64_t i = 0; i < kHalf; ++i) {
      const std::complex<double> before(At(input, {1, t, 1, i}), At(input, {1, t, 1, i + kHalf}));
      const std::complex<double> expected = before * std::polar(1.0, angle(t, i));
      EXPECT_NEAR(At(x, {1, t, 1, i}), expected.real(), 1e-14);
      EXPECT_NEAR(At(x, {1, t, 1, i + kHalf}), expected.imag(), 1e-14);
    }
  }
  backend_->Rope({cos, sin, /*inverse=*/true, x});
  ExpectClose(x, input, {.absolute = 1e-14}, "rotated back");
}

TEST_F(ReferenceBackendTest, DropoutMaskBelongsToTheLogicalElement) {
  const int64_t kSamples = 3, kTokens = 4, kColumns = 6;
  const RandomStream stream{.seed = 9, .use = RandomUse::kDropout, .stream = 77};
  const Dropout whole{.probability = 0.5,
                      .stream = stream,
                      .first_sample = 10,
                      .rows_per_sample = kTokens,
                      .global_columns = kColumns};
  const Tensor x(kF64, {kSamples * kTokens, kColumns});
  backend_->Fill({x, 1});
  backend_->ApplyDropout({whole, x});
  for (int64_t r = 0; r < kSamples * kTokens; ++r) {
    RandomStream sample = stream;
    sample.stream = MixCoordinates(stream.stream, 10 + r / kTokens);
    for (int64_t c = 0; c < kColumns; ++c) {
      const bool kept = RandomUniform(sample, (r % kTokens) * kColumns + c) >= 0.5f;
      EXPECT_EQ(At(x, {r, c}), kept ? 2 : 0) << r << "," << c;
    }
  }
  // The same elements on another rank: rows 2 to 8, of all three samples, columns 2 to 4.
  Dropout part = whole;
  part.row_offset = 2;
  part.column_offset = 2;
  const Tensor y(kF64, {7, 3});
  backend_->Fill({y, 1});
  backend_->ApplyDropout({part, y});
  ExpectBitwiseEqual(y, x.view().Slice(0, 2, 9).Slice(1, 2, 5));
  // Rows 5 to 8 of the micro-batch that begins with sample 10 are rows 1 to 4 of that which begins
  // with sample 11.
  part.first_sample = 11;
  part.row_offset = 1;
  const Tensor z(kF64, {4, 3});
  backend_->Fill({z, 1});
  backend_->ApplyDropout({part, z});
  ExpectBitwiseEqual(z, x.view().Slice(0, 5, 9).Slice(1, 2, 5));
}

TEST_F(ReferenceBackendTest, DropoutKeepsTheMeanAndZeroIsTheIdentity) {
  Dropout dropout{.probability = 0.2, .rows_per_sample = 1, .global_columns = 100};
  const Tensor x(kF64, {1000, 100});
  backend_->Fill({x, 1});
  backend_->ApplyDropout({dropout, x});
  // The mean of 1e5 draws has a standard deviation of 0.5 / sqrt(1e5) = 0.0016.
  EXPECT_NEAR(backend_->Sum({x}) / 1e5, 1, 0.01);
  dropout.probability = 0;
  const Tensor before = Cloned(x);
  backend_->ApplyDropout({dropout, x});
  ExpectBitwiseEqual(x, before);
}

struct AttentionResult {
  Tensor out, log_sum_exp;
};

AttentionResult RunAttention(Backend& backend, const AttentionOptions& options, const TensorView& q,
                             const TensorView& k, const TensorView& v) {
  AttentionResult result{Tensor(kF64, q.shape()), Tensor(kF64, {q.dim(0), q.dim(2), q.dim(1)})};
  backend.AttentionForward({options, q, k, v, result.out, result.log_sum_exp});
  return result;
}

TEST_F(ReferenceBackendTest, AttentionAveragesTheValuesBeforeTheQuery) {
  const int64_t kSequence = 4;
  const Tensor q(kF64, {1, kSequence, 1, 2}), k = random_.Normal(kF64, {1, kSequence, 1, 2});
  const Tensor v = random_.Normal(kF64, {1, kSequence, 1, 2});
  const AttentionResult result = RunAttention(*backend_, {.scale = 1}, q, k, v);  // scores 0
  double sum = 0;
  for (int64_t t = 0; t < kSequence; ++t) {
    sum += At(v, {0, t, 0, 1});
    EXPECT_NEAR(At(result.out, {0, t, 0, 1}), sum / (t + 1), 1e-14);
    EXPECT_NEAR(At(result.log_sum_exp, {0, 0, t}), std::log(t + 1.0), 1e-14);
  }
}

TEST_F(ReferenceBackendTest, GroupedQueriesEqualRepeatedKeysAndValues) {
  const int64_t kBatch = 2, kSequence = 3, kHeads = 4, kKeyHeads = 2, kSize = 5;
  const Tensor q = random_.Normal(kF64, {kBatch, kSequence, kHeads, kSize});
  const Tensor k = random_.Normal(kF64, {kBatch, kSequence, kKeyHeads, kSize});
  const Tensor v = random_.Normal(kF64, {kBatch, kSequence, kKeyHeads, kSize});
  const Tensor all_k(kF64, q.view().shape()), all_v(kF64, q.view().shape());
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t kv = h / (kHeads / kKeyHeads);
    backend_->Copy({k.view().Slice(2, kv, kv + 1), all_k.view().Slice(2, h, h + 1)});
    backend_->Copy({v.view().Slice(2, kv, kv + 1), all_v.view().Slice(2, h, h + 1)});
  }
  const AttentionOptions options{.scale = 0.4, .dropout_probability = 0.25};
  const AttentionResult grouped = RunAttention(*backend_, options, q, k, v);
  const AttentionResult repeated = RunAttention(*backend_, options, q, all_k, all_v);
  ExpectBitwiseEqual(grouped.out, repeated.out);
  ExpectBitwiseEqual(grouped.log_sum_exp, repeated.log_sum_exp);
}

TEST_F(ReferenceBackendTest, AttentionDropoutIsKeyedByGlobalHeadAndSample) {
  const int64_t kBatch = 2, kSequence = 6, kHeads = 4, kSize = 3;
  const Shape shape{kBatch, kSequence, kHeads, kSize};
  const Tensor q = random_.Normal(kF64, shape), k = random_.Normal(kF64, shape);
  const Tensor v = random_.Normal(kF64, shape);
  AttentionOptions options{.scale = 0.6,
                           .dropout_probability = 0.3,
                           .dropout_stream = {.seed = 4, .use = RandomUse::kDropout, .stream = 8},
                           .first_sample = 100};
  const AttentionResult whole = RunAttention(*backend_, options, q, k, v);
  options.first_sample = 101;
  options.first_head = 2;
  const auto part = [](const TensorView& x) { return x.Slice(0, 1, 2).Slice(2, 2, 4); };
  const AttentionResult shard = RunAttention(*backend_, options, part(q), part(k), part(v));
  ExpectBitwiseEqual(shard.out, part(whole.out));
  // Row 0 has one key, whose probability is 1: the output is the dropout factor times v.
  RandomStream stream = options.dropout_stream;
  stream.stream = MixCoordinates(stream.stream, 101);
  for (int64_t h = 0; h < kHeads; ++h) {
    const bool kept = RandomUniform(stream, h * kSequence * kSequence) >= 0.3;
    EXPECT_NEAR(At(whole.out, {1, 0, h, 0}), kept ? At(v, {1, 0, h, 0}) / 0.7 : 0, 1e-14);
  }
}

TEST_F(ReferenceBackendTest, CrossEntropyIsTheSameOverAnyShardsOfTheVocabulary) {
  const int64_t kRows = 5, kVocabulary = 11;
  const Tensor logits = random_.Normal(kF64, {kRows, kVocabulary}, 0, 4);
  // Both sides of the boundary between the shards below, the last token, and an ignored row.
  const Tensor targets(DType::kI32, {kRows});
  const int32_t ids[] = {0, 5, 6, -100, 10};
  std::copy(std::begin(ids), std::end(ids), targets.view().as<int32_t>());
  const Tensor stats(kF64, {1, kRows, 3}), combined(kF64, {kRows, 3}), losses(kF64, {kRows});
  backend_->CrossEntropyStats({logits, kVocabulary, targets, 0, stats.view().Reshape({kRows, 3})});
  backend_->CrossEntropyLoss({stats, targets, combined, losses});
  const Tensor gradient = Cloned(logits);
  backend_->CrossEntropyBackward({combined, targets, kVocabulary, 0, 0.5, gradient});
  for (int64_t r = 0; r < kRows; ++r) {
    double sum = 0, d_sum = 0;
    for (int64_t c = 0; c < kVocabulary; ++c) sum += std::exp(At(logits, {r, c}));
    for (int64_t c = 0; c < kVocabulary; ++c) d_sum += At(gradient, {r, c});
    const int64_t target = static_cast<int64_t>(At(targets, {r}));
    EXPECT_NEAR(At(losses, {r}), target < 0 ? 0 : std::log(sum) - At(logits, {r, target}), 1e-12);
    EXPECT_NEAR(d_sum, 0, 1e-14);
  }

  // Shards of 6, 5 and 0 real columns, each padded to 6 with values that must be ignored.
  const int64_t kShards = 3, kWidth = 6;
  const Tensor padded(kF64, {kShards, kRows, kWidth}), split(kF64, {kShards, kRows, 3});
  backend_->Fill({padded, 1e6});
  const Tensor split_combined(kF64, {kRows, 3}), split_losses(kF64, {kRows});
  const auto shard = [&](const Tensor& x, int64_t s) {
    return TensorView(x.view().Slice(0, s, s + 1).data(), kF64, {kRows, x.view().dim(2)});
  };
  const auto valid = [&](int64_t s) {
    return std::max<int64_t>(0, std::min(kWidth, kVocabulary - s * kWidth));
  };
  const auto real = [&](const TensorView& x, int64_t s) {
    return x.Slice(1, std::min(s * kWidth, kVocabulary),
                   std::min(s * kWidth + kWidth, kVocabulary));
  };
  for (int64_t s = 0; s < kShards; ++s) {
    backend_->Copy({real(logits, s), shard(padded, s).Slice(1, 0, valid(s))});
    backend_->CrossEntropyStats({shard(padded, s), valid(s), targets, s * kWidth, shard(split, s)});
  }
  backend_->CrossEntropyLoss({split, targets, split_combined, split_losses});
  ExpectClose(split_combined, combined, {.relative = 1e-14}, "combined stats");
  ExpectClose(split_losses, losses, {.absolute = 1e-13}, "losses");
  for (int64_t s = 0; s < kShards; ++s) {
    const TensorView d_shard = shard(padded, s);
    backend_->CrossEntropyBackward({split_combined, targets, valid(s), s * kWidth, 0.5, d_shard});
    ExpectClose(d_shard.Slice(1, 0, valid(s)), real(gradient, s), {.absolute = 1e-14}, "d_logits");
    EXPECT_EQ(backend_->SumOfSquares({d_shard.Slice(1, valid(s), kWidth)}), 0) << "padding";
  }
}

TEST_F(ReferenceBackendTest, AdamWIsItsScalarFormula) {
  const int64_t kCount = 16, kSteps = 3;
  const Tensor start = random_.Normal(kF64, {kCount}), param = Cloned(start);
  const Tensor m(kF64, {kCount}), v(kF64, {kCount});
  AdamWOptions options{.learning_rate = 0.01, .weight_decay = 0.1, .grad_scale = 0.5};
  double w = At(start, {3}), w_m = 0, w_v = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Tensor grad = random_.Normal(kF64, {kCount});
    options.step = step;
    backend_->AdamW({options, grad, {}, m, v, param});
    const double g = 0.5 * At(grad, {3});
    w_m = 0.9 * w_m + 0.1 * g;
    w_v = 0.95 * w_v + 0.05 * g * g;
    const double m_hat = w_m / (1 - std::pow(0.9, step)), v_hat = w_v / (1 - std::pow(0.95, step));
    w = w * (1 - 0.01 * 0.1) - 0.01 * m_hat / (std::sqrt(v_hat) + 1e-8);
  }
  EXPECT_NEAR(At(param, {3}), w, 1e-14);
  EXPECT_NEAR(At(m, {3}), w_m, 1e-15);
  EXPECT_NEAR(At(v, {3}), w_v, 1e-15);
}

TEST_F(ReferenceBackendTest, AdamWRoundsTheStoredMasterIntoTheParameter) {
  const int64_t kCount = 64;
  const Tensor master = random_.Normal(kF32, {kCount}), param = Converted(master, kBF16);
  const Tensor m(kF32, {kCount}), v(kF32, {kCount}), grad = random_.Normal(kF32, {kCount});
  const Tensor alone = Cloned(master), alone_m = Cloned(m), alone_v = Cloned(v);
  const AdamWOptions options{.learning_rate = 0.01, .weight_decay = 0.1};
  backend_->AdamW({options, grad, master, m, v, param});
  ExpectBitwiseEqual(param, Converted(master, kBF16));
  backend_->AdamW({options, grad, {}, alone_m, alone_v, alone});
  ExpectBitwiseEqual(alone, master, "fp32 parameter without a master");
  ExpectBitwiseEqual(alone_m, m);
}

}  // namespace
}  // namespace tessera
