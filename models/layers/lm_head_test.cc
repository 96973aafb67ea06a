#include "models/layers/lm_head.h"

#include <algorithm>

#include "base/testing.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "compute/kernels/testing/random_tensors.h"
#include "gtest/gtest.h"
#include "models/layers/declare.h"

namespace tessera {
namespace {

constexpr int64_t kChannels = 6, kVocabulary = 11, kPadded = 16;

struct Result {
  double loss = 0;
  Tensor d;
  Tensor d_norm;
  Tensor d_table;
};

// Forward and backward with logits of at most `logits_rows` rows at once; with `fuses`, the forward
// pass computes the gradients of logits.
Result RunHead(int64_t logits_rows, int shards, const TensorView& x, const TensorView& targets,
               bool fuses = false, int64_t units = 1) {
  const auto backend = MakeReferenceBackend();
  const TensorParallel tensor_parallel(nullptr, shards, false);
  ParameterSet set;
  Parameter& norm = set.Add(WholeParameter("norm", {kChannels}, kAfterLayers, kInitOnes));
  const std::vector<VocabularyShard> table = DeclareTable(
      {"head", kVocabulary, kPadded, kChannels, kAfterLayers, InitNormal(0.5), "", false},
      tensor_parallel, set);
  set.Allocate(DType::kF64, {}, true);
  set.Initialize(1);
  const LmHead head(std::make_unique<RmsNorm>(norm, 1e-5), table, kVocabulary);
  const int64_t rows = x.dim(0);
  const Pass pass = {.backend = *backend,
                     .tensor_parallel = tensor_parallel,
                     .batch = rows / 5,
                     .sequence = 5,
                     .units = units};
  const int64_t max_bytes = logits_rows * kPadded * ElementSize(DType::kF64);
  Arena measure;
  head.LayOut(measure, pass, DType::kF64, true, max_bytes);
  Tensor memory(DType::kF64, {measure.high_water_bytes() / 8});
  Arena place(memory.view().data());
  const LmHead::Buffers buffers = head.LayOut(place, pass, DType::kF64, true, max_bytes);
  if (units == 1) EXPECT_EQ(buffers.logits[0].dim(0), std::min(logits_rows, rows));

  Result result;
  result.d = Tensor(DType::kF64, {rows, kChannels});
  for (const bool accumulate : {false, units == 1}) {
    EXPECT_OK(NormForward(pass, x, head.InputNorm(buffers)));
    if (fuses) {
      EXPECT_TRUE(head.Fuses(pass));
      result.loss = head.ForwardFused(pass, targets, buffers, 0.5, accumulate);
      EXPECT_OK(head.BackwardFused(pass, x, buffers, accumulate, result.d));
      continue;
    }
    result.loss = head.Forward(pass, targets, buffers).value();
    EXPECT_OK(head.Backward(pass, x, targets, buffers, 0.5, accumulate, result.d));
  }
  result.d_norm = testing::Cloned(norm.grad);
  result.d_table = Tensor(DType::kF64, {kPadded, kChannels});
  for (const VocabularyShard& shard : table) {
    const TensorView rows =
        result.d_table.view().Slice(0, shard.first_id, shard.first_id + shard.table->shape[0]);
    backend->Copy({shard.table->grad, rows});
  }
  return result;
}

void ExpectSameBits(const Result& fused, const Result& apart) {
  EXPECT_EQ(fused.loss, apart.loss);
  testing::ExpectBitwiseEqual(fused.d, apart.d, "input");
  testing::ExpectBitwiseEqual(fused.d_norm, apart.d_norm, "norm");
  testing::ExpectBitwiseEqual(fused.d_table, apart.d_table, "table");
}

TEST(LmHeadTest, ChunksOfAnyHeightAndShardsGiveTheSameLossAndGradients) {
  testing::RandomTensors random(1);
  const Tensor x = random.Normal(DType::kF64, {10, kChannels});
  const Tensor targets = random.Ids({10}, -1, kVocabulary);
  const Result whole = RunHead(100, 1, x, targets);
  for (const int shards : {1, 2, 4}) {
    for (const int64_t rows : {1, 3, 4, 9, 10}) {
      const Result chunked = RunHead(rows, shards, x, targets);
      EXPECT_NEAR(chunked.loss, whole.loss, 1e-12);
      testing::ExpectClose(chunked.d, whole.d, {.of_maximum = 1e-12});
      testing::ExpectClose(chunked.d_norm, whole.d_norm, {.of_maximum = 1e-12});
      testing::ExpectClose(chunked.d_table, whole.d_table, {.of_maximum = 1e-12});
      ExpectSameBits(RunHead(rows, shards, x, targets, /*fuses=*/true), chunked);
    }
  }
}

// Chunks of some units, one, or a part of one.
TEST(LmHeadTest, CanonicalUnitsGiveTheSameGradientsInChunksOfAnyHeight) {
  testing::RandomTensors random(2);
  const Tensor x = random.Normal(DType::kF64, {40, kChannels});
  const Tensor targets = random.Ids({40}, -1, kVocabulary);
  for (const int shards : {1, 4}) {
    const Result whole = RunHead(40, shards, x, targets, /*fuses=*/false, /*units=*/8);
    for (const int64_t rows : {1, 3, 5, 9, 10, 23}) {
      const Result chunked = RunHead(rows, shards, x, targets, /*fuses=*/false, /*units=*/8);
      EXPECT_EQ(chunked.loss, whole.loss);
      testing::ExpectBitwiseEqual(chunked.d_norm, whole.d_norm, "norm");
      testing::ExpectClose(chunked.d_table, whole.d_table, {.of_maximum = 1e-12});
      // Four units at once, two, and one: one tree.
      if (rows >= 5) testing::ExpectBitwiseEqual(chunked.d_table, whole.d_table, "table");
      ExpectSameBits(RunHead(rows, shards, x, targets, /*fuses=*/true, /*units=*/8), chunked);
    }
  }
}

}  // namespace
}  // namespace tessera
