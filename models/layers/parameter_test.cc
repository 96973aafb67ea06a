#include "models/layers/parameter.h"

#include <cmath>

#include "gtest/gtest.h"
#include "models/layers/declare.h"
#include "tensor/bfloat16.h"

namespace tessera {
namespace {

float At(const Parameter& p, int64_t row, int64_t column) {
  return p.value.as<float>()[row * p.shape[1] + column];
}

TEST(ParameterSetTest, EveryParameterStartsAtAMultipleOf256) {
  ParameterSet set;
  Parameter& a = set.Add(WholeParameter("a", {3, 5}, kAfterLayers, kInitZeros));
  Parameter& b = set.Add(WholeParameter("b", {65}, kAfterLayers, kInitOnes));
  Parameter& c = set.Add(WholeParameter("c", {1}, kAfterLayers, kInitOnes));
  EXPECT_EQ(a.flat_offset, 0);
  EXPECT_EQ(b.flat_offset, 256);
  EXPECT_EQ(c.flat_offset, 512);
  EXPECT_EQ(set.flat_elements(), 768);
  EXPECT_EQ(set.logical_elements(), 15 + 65 + 1);
  set.Allocate(DType::kBF16, {}, /*with_gradients=*/true);
  EXPECT_EQ(b.value.dtype(), DType::kBF16);
  EXPECT_EQ(b.grad.dtype(), DType::kF32);
  EXPECT_EQ(b.grad.as<float>() - set.grads().view().as<float>(), 256);
  EXPECT_TRUE(a.weight_decay);
  EXPECT_FALSE(b.weight_decay);
}

TEST(ParameterSetTest, WithoutGradientsThereAreNone) {
  ParameterSet set;
  Parameter& a = set.Add(WholeParameter("a", {3, 5}, kAfterLayers, kInitZeros));
  set.Allocate(DType::kF32, {}, /*with_gradients=*/false);
  EXPECT_TRUE(a.grad.empty());
  EXPECT_TRUE(set.grads().view().empty());
}

TEST(ParameterSetTest, InitialValuesHaveTheirDistributionAndPaddingIsZero) {
  ParameterSet set;
  Parameter& table =
      set.Add(TableParameter("table", {1000, 64}, 1024, kBothEnds, {}, InitNormal(0.02)));
  Parameter& norm = set.Add(WholeParameter("norm", {64}, kAfterLayers, kInitOnes));
  set.Allocate(DType::kF32, {}, false);
  set.Initialize(1);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 64000; ++i) {
    const double value = table.value.as<float>()[i];
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 64000, 0, 4 * 0.02 / std::sqrt(64000.0));
  EXPECT_NEAR(std::sqrt(squares / 64000), 0.02, 0.0003);
  for (int64_t i = 64000; i < 1024 * 64; ++i) EXPECT_EQ(table.value.as<float>()[i], 0);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(norm.value.as<float>()[i], 1);
}

TEST(ParameterSetTest, ValuesDependOnSeedAndName) {
  ParameterSet set;
  Parameter& a = set.Add(WholeParameter("a", {4, 4}, kAfterLayers, InitNormal(1)));
  Parameter& b = set.Add(WholeParameter("b", {4, 4}, kAfterLayers, InitNormal(1)));
  set.Allocate(DType::kF32, {}, false);
  set.Initialize(1);
  EXPECT_NE(At(a, 0, 0), At(b, 0, 0));
  const float first = At(a, 0, 0);
  set.Initialize(2);
  EXPECT_NE(At(a, 0, 0), first);
  set.Initialize(1);
  EXPECT_EQ(At(a, 0, 0), first);
}

// A slice of the columns of three logical blocks, as a tensor-parallel rank holds of a fused
// matrix, and rows stacked in another order: the same element has the same value everywhere.
TEST(ParameterSetTest, AnyShardingGivesTheSameValues) {
  ParameterSet whole_set;
  Parameter& whole = whole_set.Add(WholeParameter("w", {6, 30}, kAfterLayers, InitNormal(1)));
  whole_set.Allocate(DType::kF32, {}, false);
  whole_set.Initialize(9);

  Parameter slice;
  slice.shape = {6, 9};  // three columns of each block of ten, from the seventh on
  for (int64_t block = 0; block < 3; ++block) {
    slice.pieces.push_back({"w", {6, 30}, {0, 10 * block + 6}, {0, 3 * block}, {6, 3}});
  }
  slice.init = InitNormal(1);
  Parameter rows;
  rows.shape = {4, 30};
  rows.pieces.push_back({"w", {6, 30}, {4, 0}, {0, 0}, {2, 30}});
  rows.pieces.push_back({"w", {6, 30}, {1, 0}, {2, 0}, {2, 30}});
  rows.init = InitNormal(1);
  ParameterSet shard_set;
  Parameter& columns = shard_set.Add(slice);
  Parameter& stacked = shard_set.Add(rows);
  shard_set.Allocate(DType::kF32, {}, false);
  shard_set.Initialize(9);
  for (int64_t r = 0; r < 6; ++r) {
    for (int64_t c = 0; c < 9; ++c) {
      EXPECT_EQ(At(columns, r, c), At(whole, r, 10 * (c / 3) + 6 + c % 3)) << r << ", " << c;
    }
  }
  const int64_t logical_rows[] = {4, 5, 1, 2};
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 30; ++c) EXPECT_EQ(At(stacked, r, c), At(whole, logical_rows[r], c));
  }
}

TEST(ParameterSetTest, ShardsOfFusedSectionsAreBoxesOfTheirLogicalTensors) {
  // q, k and v as thirds of the columns of one tensor; the second of two shards.
  const Partition partition = {.dim = 1, .sections = 3, .place = InLayer(4)};
  const Parameter thirds = ShardedParameter("w", {2, 12}, partition, {1, 2}, kInitZeros);
  EXPECT_EQ(thirds.shape, (Shape{2, 6}));
  EXPECT_EQ(thirds.shard, 1);
  ASSERT_EQ(thirds.pieces.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    const ParameterPiece& piece = thirds.pieces[i];
    EXPECT_EQ(piece.global_shape, (Shape{2, 12}));
    EXPECT_EQ(piece.partition, partition);
    EXPECT_EQ(piece.global_offset, (std::vector<int64_t>{0, 4 * i + 2}));
    EXPECT_EQ(piece.local_offset, (std::vector<int64_t>{0, 2 * i}));
    EXPECT_EQ(piece.shape, (Shape{2, 2}));
  }
  // Unsharded, they form a single box.
  const Parameter whole = ShardedParameter("w", {2, 12}, partition, {}, kInitZeros);
  ASSERT_EQ(whole.pieces.size(), 1u);
  EXPECT_EQ(whole.pieces[0].shape, (Shape{2, 12}));
  EXPECT_EQ(whole.shard, -1);
}

TEST(ParameterSetTest, AShardOfATableMayBeAllPadding) {
  ParameterSet set;
  const Parameter& partly =
      set.Add(TableParameter("t", {5, 2}, 8, kBothEnds, {2, 4}, InitNormal(1)));
  const Parameter& empty =
      set.Add(TableParameter("t", {5, 2}, 8, kBothEnds, {3, 4}, InitNormal(1)));
  EXPECT_EQ(partly.key, "t/v2");
  EXPECT_EQ(empty.key, "t/v3");
  EXPECT_EQ(partly.pieces[0].global_offset, (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(partly.pieces[0].shape, (Shape{1, 2}));
  EXPECT_EQ(partly.pieces[0].padded_global_shape, (Shape{8, 2}));
  EXPECT_EQ(partly.pieces[0].partition, (Partition{.dim = 0, .padded = true, .place = kBothEnds}));
  EXPECT_EQ(empty.pieces[0].shape, (Shape{0, 2}));
  EXPECT_EQ(set.logical_elements(), 2);
  set.Allocate(DType::kF32, {}, false);
  set.Initialize(1);
  EXPECT_NE(At(partly, 0, 0), 0);
  EXPECT_EQ(At(partly, 1, 1), 0);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(empty.value.as<float>()[i], 0);
}

TEST(ParameterSetTest, GradientsCanBeBoundToOtherMemoryByRange) {
  ParameterSet set;
  Parameter table = WholeParameter("table", {4, 4}, kAfterLayers, kInitZeros);
  table.has_second_grad = true;
  const Parameter& a = set.Add(table);
  const Parameter& b = set.Add(WholeParameter("b", {7}, kAfterLayers, kInitZeros));
  set.Allocate(DType::kBF16, {}, /*with_gradients=*/false);
  EXPECT_EQ(set.flat_elements(), 512);
  EXPECT_EQ(set.gradient_elements(), 768);
  EXPECT_EQ(a.second_grad_offset, 512);
  EXPECT_TRUE(a.grad.empty() && a.second_grad.empty() && b.grad.empty());

  Tensor memory(DType::kF32, {512});
  set.BindGradients(256, 768, memory);
  EXPECT_TRUE(a.grad.empty());
  EXPECT_EQ(b.grad.data(), memory.view().data());
  EXPECT_EQ(b.grad.shape(), (Shape{7}));
  EXPECT_EQ(a.second_grad.as<float>(), memory.view().as<float>() + 256);
  EXPECT_EQ(a.second_grad.shape(), (Shape{4, 4}));
  set.BindGradients(256, 512, {});
  EXPECT_TRUE(b.grad.empty());
  EXPECT_FALSE(a.second_grad.empty());
}

TEST(ParameterSetTest, TheComputeDtypeOnlyRounds) {
  std::vector<Parameter*> parameters;
  ParameterSet sets[3];
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF64};
  for (int i = 0; i < 3; ++i) {
    parameters.push_back(
        &sets[i].Add(WholeParameter("w", {700, 700}, kAfterLayers, InitNormal(0.02))));
    sets[i].Allocate(dtypes[i], {}, false);
    sets[i].Initialize(4);
  }
  for (int64_t i = 0; i < 700 * 700; ++i) {
    const float value = parameters[0]->value.as<float>()[i];
    ASSERT_EQ(parameters[1]->value.as<BFloat16>()[i].bits, BFloat16(value).bits);
    ASSERT_EQ(parameters[2]->value.as<double>()[i], value);
  }
}

}  // namespace
}  // namespace tessera
