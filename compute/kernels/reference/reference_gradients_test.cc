// Every backward formula against finite differences of its forward formula, in fp64.
// Each check differentiates L = sum_i w[i] out[i] with random weights w, which are then d_out.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "compute/kernels/backend.h"
#include "compute/kernels/reference/array.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/gradient_check.h"
#include "compute/kernels/testing/random_tensors.h"
#include "compute/random/philox.h"
#include "layout/dtype.h"
#include "tensor/tensor.h"

namespace tessera {
namespace {

using testing::Cloned;
using testing::ExpectClose;
using testing::ExpectGradient;

constexpr DType kF64 = DType::kF64;

double Dot(const TensorView& a, const TensorView& b) {
  const reference::Array left(a), right(b);
  double sum = 0;
  for (size_t i = 0; i < left.values().size(); ++i) sum += left.values()[i] * right.values()[i];
  return sum;
}

class ReferenceGradientsTest : public ::testing::Test {
 protected:
  Tensor Random(Shape shape) { return random_.Normal(kF64, std::move(shape)); }

  // Runs backward(first), which must overwrite, and again with accumulation, which must double the
  // result.
  void ExpectAccumulates(const std::function<void(TensorView, bool)>& backward,
                         const Shape& shape) {
    const Tensor once(kF64, shape), twice(kF64, shape);
    backend_->Fill({once, 17});
    backward(once, false);
    backend_->Copy({once, twice});
    backward(twice, true);
    Tensor expected = Cloned(once);
    backend_->Scale({expected, 2});
    ExpectClose(twice, expected, {.of_maximum = 1e-15}, "accumulated gradient");
  }

  testing::RandomTensors random_{20240607};
  std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
};

TEST_F(ReferenceGradientsTest, MatMulThroughTransposedProducts) {
  const int64_t kM = 3, kK = 5, kN = 4;
  const Tensor a = Random({kM, kK}), b = Random({kK, kN}), bias = Random({kN});
  const Tensor c(kF64, {kM, kN}), w = Random({kM, kN});
  const auto loss = [&] {
    backend_->MatMul({a, b, c, /*accumulate=*/false, bias});
    return Dot(c, w);
  };
  const Tensor d_a(kF64, {kM, kK}), d_b(kF64, {kK, kN}), d_bias(kF64, {kN});
  backend_->MatMul({w, b.view().Transpose(0, 1), d_a, false});
  backend_->MatMul({a.view().Transpose(0, 1), w, d_b, false});
  backend_->SumRows({w, d_bias, false});
  ExpectGradient(loss, a, d_a, "a");
  ExpectGradient(loss, b, d_b, "b");
  ExpectGradient(loss, bias, d_bias, "bias");
}

TEST_F(ReferenceGradientsTest, EmbeddingWithIdsOfOtherShards) {
  const int64_t kRows = 7, kVocabulary = 4, kFirst = 3, kChannels = 5;
  const Tensor table = Random({kVocabulary, kChannels}), w = Random({kRows, kChannels});
  const Tensor ids = random_.Ids({kRows}, 0, 10);
  ids.view().as<int32_t>()[0] = kFirst;
  ids.view().as<int32_t>()[1] = kFirst;
  const Tensor out(kF64, {kRows, kChannels});
  const auto loss = [&] {
    backend_->EmbeddingForward({table, ids, kFirst, out});
    return Dot(out, w);
  };
  const Tensor d_table(kF64, {kVocabulary, kChannels});
  backend_->EmbeddingBackward({w, ids, kFirst, d_table});
  ExpectGradient(loss, table, d_table, "table");
}

TEST_F(ReferenceGradientsTest, Positions) {
  const int64_t kBatch = 3, kSequence = 4, kChannels = 5, kRows = kBatch * kSequence;
  const Tensor table = Random({kSequence + 2, kChannels}), w = Random({kRows, kChannels});
  const Tensor input = Random({kRows, kChannels});
  const auto loss = [&] {
    const Tensor x = Cloned(input);
    backend_->AddPositions({table, kSequence, x});
    return Dot(x, w);
  };
  const Tensor d_table(kF64, table.view().shape());
  backend_->AddPositionsBackward({w, kSequence, d_table, /*accumulate=*/false});
  ExpectGradient(loss, table, d_table, "table");
  ExpectAccumulates(
      [&](const TensorView& d, bool accumulate) {
        backend_->AddPositionsBackward({w, kSequence, d, accumulate});
      },
      table.view().shape());
}

TEST_F(ReferenceGradientsTest, LayerNorm) {
  const int64_t kRows = 4, kChannels = 6;
  const Shape rows{kRows}, channels{kChannels}, shape{kRows, kChannels};
  const Tensor x = random_.Normal(kF64, shape, 3, 2), weight = Random(channels);
  const Tensor bias = Random(channels), w = Random(shape);
  const Tensor out(kF64, shape), mean(kF64, rows), rstd(kF64, rows);
  const auto loss = [&] {
    backend_->LayerNormForward({x, weight, bias, 1e-5, out, mean, rstd});
    return Dot(out, w);
  };
  loss();
  const Tensor d_x(kF64, shape), d_weight(kF64, channels), d_bias(kF64, channels);
  const auto backward = [&](const TensorView& dx, const TensorView& dw, const TensorView& db,
                            bool accumulate) {
    backend_->LayerNormBackward({w, x, weight, mean, rstd, dx, accumulate, dw, db, accumulate});
  };
  ExpectAccumulates([&](const TensorView& d, bool add) { backward(d, d_weight, d_bias, add); },
                    shape);
  ExpectAccumulates([&](const TensorView& d, bool add) { backward(d_x, d, d_bias, add); },
                    channels);
  ExpectAccumulates([&](const TensorView& d, bool add) { backward(d_x, d_weight, d, add); },
                    channels);
  backward(d_x, d_weight, d_bias, false);
  ExpectGradient(loss, x, d_x, "x");
  ExpectGradient(loss, weight, d_weight, "weight");
  ExpectGradient(loss, bias, d_bias, "bias");
}

TEST_F(ReferenceGradientsTest, RmsNorm) {
  const int64_t kRows = 4, kChannels = 6;
  const Shape rows{kRows}, channels{kChannels}, shape{kRows, kChannels};
  const Tensor x = random_.Normal(kF64, shape, 1, 2), weight = Random(channels), w = Random(shape);
  const Tensor out(kF64, shape), rstd(kF64, rows);
  const auto loss = [&] {
    backend_->RmsNormForward({x, weight, 1e-5, out, rstd});
    return Dot(out, w);
  };
  loss();
  const Tensor d_x(kF64, shape), d_weight(kF64, channels);
  const auto backward = [&](const TensorView& dx, const TensorView& dw, bool accumulate) {
    backend_->RmsNormBackward({w, x, weight, rstd, dx, accumulate, dw, accumulate});
  };
  ExpectAccumulates([&](const TensorView& d, bool add) { backward(d, d_weight, add); }, shape);
  ExpectAccumulates([&](const TensorView& d, bool add) { backward(d_x, d, add); }, channels);
  backward(d_x, d_weight, false);
  ExpectGradient(loss, x, d_x, "x");
  ExpectGradient(loss, weight, d_weight, "weight");
}

TEST_F(ReferenceGradientsTest, GeluAlsoInPlace) {
  const Tensor x = random_.Normal(kF64, {3, 7}, 0, 2), w = Random({3, 7}), out(kF64, {3, 7});
  const auto loss = [&] {
    backend_->GeluForward({x, out});
    return Dot(out, w);
  };
  const Tensor d_x(kF64, {3, 7}), in_place = Cloned(w);
  backend_->GeluBackward({w, x, d_x});
  backend_->GeluBackward({in_place, x, in_place});
  ExpectGradient(loss, x, d_x, "x");
  testing::ExpectBitwiseEqual(in_place, d_x);
}

TEST_F(ReferenceGradientsTest, SwiGlu) {
  const Tensor gate_up = random_.Normal(kF64, {3, 10}, 0, 2), w = Random({3, 5});
  const Tensor out(kF64, {3, 5}), d_gate_up(kF64, {3, 10});
  const auto loss = [&] {
    backend_->SwiGluForward({gate_up, out});
    return Dot(out, w);
  };
  backend_->SwiGluBackward({w, gate_up, d_gate_up});
  ExpectGradient(loss, gate_up, d_gate_up, "gate_up");
}

TEST_F(ReferenceGradientsTest, DropoutIsItsOwnBackward) {
  const Dropout dropout{.probability = 0.4,
                        .stream = {.seed = 1, .use = RandomUse::kDropout, .stream = 2},
                        .rows_per_sample = 2,
                        .global_columns = 5};
  const Tensor input = Random({6, 5}), w = Random({6, 5});
  const auto loss = [&] {
    const Tensor x = Cloned(input);
    backend_->ApplyDropout({dropout, x});
    return Dot(x, w);
  };
  const Tensor d_x = Cloned(w);
  backend_->ApplyDropout({dropout, d_x});
  ExpectGradient(loss, input, d_x, "x");
}

TEST_F(ReferenceGradientsTest, RopeIsUndoneByItsInverse) {
  const int64_t kSequence = 5, kHalf = 3;
  const Tensor angles = Random({kSequence, kHalf});
  const Tensor cos(kF64, {kSequence, kHalf}), sin(kF64, {kSequence, kHalf});
  for (int64_t i = 0; i < kSequence * kHalf; ++i) {
    cos.view().as<double>()[i] = std::cos(angles.view().as<double>()[i]);
    sin.view().as<double>()[i] = std::sin(angles.view().as<double>()[i]);
  }
  const Shape shape{2, kSequence, 2, 2 * kHalf};
  const Tensor input = Random(shape), w = Random(shape);
  const auto loss = [&] {
    const Tensor x = Cloned(input);
    backend_->Rope({cos, sin, /*inverse=*/false, x});
    return Dot(x, w);
  };
  const Tensor d_x = Cloned(w);
  backend_->Rope({cos, sin, /*inverse=*/true, d_x});
  ExpectGradient(loss, input, d_x, "x");
}

struct AttentionCase {
  int64_t heads, key_heads;
  double dropout_probability;
};

class AttentionGradientsTest : public ReferenceGradientsTest,
                               public ::testing::WithParamInterface<AttentionCase> {};

TEST_P(AttentionGradientsTest, OverViewsOfAFusedBuffer) {
  const int64_t heads = GetParam().heads, key_heads = GetParam().key_heads;
  const int64_t kBatch = 2, kSequence = 5, kSize = 4, all = heads + 2 * key_heads;
  // [B, T, H + 2K, D]: queries, keys and values of one token are adjacent.
  const Tensor fused = Random({kBatch, kSequence, all, kSize});
  const Tensor d_fused(kF64, {kBatch, kSequence, all, kSize});
  const auto part = [&](const Tensor& tensor, int index) {
    const int64_t begins[] = {0, heads, heads + key_heads, all};
    return tensor.view().Slice(2, begins[index], begins[index + 1]);
  };
  const Shape shape{kBatch, kSequence, heads, kSize};
  const Tensor out(kF64, shape), lse(kF64, {kBatch, heads, kSequence}), w = Random(shape);
  const AttentionOptions options{.scale = 0.5,
                                 .dropout_probability = GetParam().dropout_probability,
                                 .dropout_stream = {.seed = 5, .use = RandomUse::kDropout},
                                 .first_sample = 3,
                                 .first_head = 1};
  const auto loss = [&] {
    backend_->AttentionForward({options, part(fused, 0), part(fused, 1), part(fused, 2), out, lse});
    return Dot(out, w);
  };
  loss();
  backend_->AttentionBackward({options, w, part(fused, 0), part(fused, 1), part(fused, 2), out, lse,
                               part(d_fused, 0), part(d_fused, 1), part(d_fused, 2)});
  ExpectGradient(loss, fused, d_fused, "fused q, k, v");
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradientsTest,
                         ::testing::Values(AttentionCase{2, 2, 0}, AttentionCase{4, 2, 0},
                                           AttentionCase{3, 1, 0}, AttentionCase{4, 2, 0.3}));

TEST_F(ReferenceGradientsTest, CrossEntropyOverTwoShardsWithPaddingAndIgnoredRows) {
  const int64_t kRows = 6, kColumns = 5, kShards = 2;
  const int64_t valid[kShards] = {5, 3};
  const double kScale = 0.25;
  const Tensor logits = Random({kShards, kRows, kColumns});
  const Tensor targets = random_.Ids({kRows}, 0, 8);
  targets.view().as<int32_t>()[2] = -1;
  const Tensor stats(kF64, {kShards, kRows, 3}), combined(kF64, {kRows, 3}), losses(kF64, {kRows});
  const auto shard = [&](const Tensor& x, int64_t s) {
    return TensorView(x.view().Slice(0, s, s + 1).data(), kF64, {kRows, x.view().dim(2)});
  };
  const auto loss = [&] {
    for (int64_t s = 0; s < kShards; ++s) {
      backend_->CrossEntropyStats(
          {shard(logits, s), valid[s], targets, s * kColumns, shard(stats, s)});
    }
    backend_->CrossEntropyLoss({stats, targets, combined, losses});
    return kScale * backend_->Sum({losses});
  };
  loss();
  const Tensor d_logits = Cloned(logits);
  for (int64_t s = 0; s < kShards; ++s) {
    backend_->CrossEntropyBackward(
        {combined, targets, valid[s], s * kColumns, kScale, shard(d_logits, s)});
  }
  ExpectGradient(loss, logits, d_logits, "logits");
}

}  // namespace
}  // namespace tessera
