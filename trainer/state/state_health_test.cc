#include "trainer/state/state_health.h"

#include <cmath>
#include <limits>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(StateHealthTest, FindsOneElementThatIsNoNumber) {
  for (const float broken : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const size_t at : {0, 1, 17, 41}) {
      std::vector<float> elements(42, -3e38f);
      ckpt::ShardedTensor tensor = {.name = "w", .global_shape = {6, 7}};
      tensor.shards = {ckpt::Shard::Of(elements, {.global_offset = {0, 0}, .shape = {6, 7}})};
      EXPECT_TRUE(IsFinite({{tensor}}));
      elements[at] = broken;
      EXPECT_FALSE(IsFinite({{tensor}})) << at;
    }
  }
}

// Columns of a buffer: what lies between them belongs to another tensor.
TEST(StateHealthTest, LooksAtTheShardAlone) {
  std::vector<float> elements(6 * 7, 1);
  ckpt::ShardedTensor tensor = {.name = "w", .global_shape = {6, 3}};
  tensor.shards = {ckpt::Shard::Of(elements, {.global_offset = {0, 0}, .shape = {6, 3}}, {7, 1})};
  elements[3] = kInfinity;
  elements[41] = kInfinity;
  EXPECT_TRUE(IsFinite({{tensor}}));
  elements[5 * 7 + 2] = kInfinity;
  EXPECT_FALSE(IsFinite({{tensor}}));
  // Transposed.
  elements[5 * 7 + 2] = 1;
  tensor.global_shape = {3, 6};
  tensor.shards = {ckpt::Shard::Of(elements, {.global_offset = {0, 0}, .shape = {3, 6}}, {1, 7})};
  EXPECT_TRUE(IsFinite({{tensor}}));
  elements[2 * 7 + 1] = kInfinity;
  EXPECT_FALSE(IsFinite({{tensor}}));
}

TEST(StateHealthTest, KnowsBfloat16AndLeavesIntegersAlone) {
  std::vector<uint16_t> elements(10, 0x7F7F);
  ckpt::ShardedTensor tensor = {.name = "w", .dtype = DType::kBF16, .global_shape = {10}};
  tensor.shards = {{.box = {.global_offset = {0}, .shape = {10}}, .data = elements.data()}};
  EXPECT_TRUE(IsFinite({{tensor}}));
  elements[9] = 0xFF80;
  EXPECT_FALSE(IsFinite({{tensor}}));
  tensor.dtype = DType::kI16;
  EXPECT_TRUE(IsFinite({{tensor}}));
}

TEST(StateHealthTest, ALossIsSaneUpToManyTimesThatOfAGuess) {
  EXPECT_TRUE(IsSaneLoss(0, 2));
  EXPECT_TRUE(IsSaneLoss(10.8, 50257));
  EXPECT_TRUE(IsSaneLoss(30, 50257));
  EXPECT_FALSE(IsSaneLoss(1000, 50257));
  EXPECT_FALSE(IsSaneLoss(std::nan(""), 50257));
  EXPECT_FALSE(IsSaneLoss(std::numeric_limits<double>::infinity(), 50257));
}

}  // namespace
}  // namespace tessera
