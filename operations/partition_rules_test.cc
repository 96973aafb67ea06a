// What rules mean, and which of them counts. That whole checkpoints come out as promised is shown
// by tests/reshard_tool.

#include "operations/partition_rules.h"

#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "gtest/gtest.h"
#include "layout/box.h"

namespace tessera::ckpt {
namespace {

LogicalTensor& AddTensor(const std::string& name, TensorRole role, const Shape& shape,
                         Manifest& manifest) {
  LogicalTensor& tensor = *manifest.add_tensors();
  tensor.set_name(name);
  tensor.set_role(ToProto(role));
  tensor.set_dtype(ToProto(DType::kF32));
  tensor.mutable_global_shape()->Add(shape.begin(), shape.end());
  return tensor;
}

// One parameter with a moment, a number of its own, and an alias.
Manifest OneParameter(const std::string& name, const Shape& shape) {
  Manifest manifest;
  AddTensor(name, TensorRole::kWeight, shape, manifest);
  AddTensor("moment", TensorRole::kOptimizerState, shape, manifest);
  AddTensor("updates", TensorRole::kOptimizerState, {}, manifest);
  AddTensor("alias", TensorRole::kWeight, shape, manifest).set_alias_of(name);
  OptimizerParameter& parameter = *manifest.mutable_optimizer()->add_parameters();
  parameter.set_parameter("alias");
  (*parameter.mutable_states())["moment"] = "moment";
  (*parameter.mutable_states())["updates"] = "updates";
  return manifest;
}

std::vector<PartitionedTensor> Partitioned(const Manifest& manifest,
                                           const std::vector<std::string>& texts = {}) {
  std::vector<PartitionRule> rules;
  for (const std::string& text : texts) {
    const auto rule = ParsePartitionRule(text);
    EXPECT_OK(rule);
    rules.push_back(rule.value_or(PartitionRule()));
  }
  const auto tensors = PartitionTensors(manifest, rules);
  EXPECT_OK(tensors);
  return tensors.value_or(std::vector<PartitionedTensor>(3));
}

TEST(PartitionRulesTest, WhatIsNotKnownIsCutAlongTheFirstOfTwoDims) {
  const Manifest matrix = OneParameter("w", {8, 8});
  const auto tensors = Partitioned(matrix);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].partition, (Partition{.dim = 0}));
  EXPECT_EQ(tensors[1].partition, (Partition{.dim = 0}));
  EXPECT_EQ(tensors[2].partition, Partition());
  EXPECT_FALSE(tensors[0].cut_is_known);
  EXPECT_EQ(tensors[0].state, -1);
  EXPECT_EQ(tensors[1].state, 0);
  EXPECT_EQ(tensors[2].state, 1);
  const Manifest vector = OneParameter("b", {8});
  EXPECT_EQ(Partitioned(vector)[0].partition, Partition());
  Manifest table = OneParameter("t", {7, 2});
  table.mutable_tensors(0)->add_padded_shape(8);
  table.mutable_tensors(0)->add_padded_shape(2);
  EXPECT_TRUE(Partitioned(table)[0].partition.padded);
}

TEST(PartitionRulesTest, TheManifestIsBelieved) {
  const Partition partition = {.dim = 1, .sections = 2, .place = InLayer(7)};
  Manifest manifest = OneParameter("w", {8, 8});
  *manifest.mutable_tensors(0)->mutable_partition() = ToProto(partition);
  const auto tensors = Partitioned(manifest);
  EXPECT_EQ(tensors[0].partition, partition);
  EXPECT_TRUE(tensors[0].cut_is_known);
  // State that says nothing itself is where its parameter is, and cut alike if it has its shape.
  EXPECT_EQ(tensors[1].partition, partition);
  EXPECT_EQ(tensors[2].partition, (Partition{.place = InLayer(7)}));
}

TEST(PartitionRulesTest, RulesCountMoreThanTheManifestAndTheLastOneMost) {
  Manifest manifest = OneParameter("blocks.11.mixer.kernel", {8, 12});
  *manifest.mutable_tensors(0)->mutable_partition() =
      ToProto(Partition{.dim = 0, .place = InLayer(3)});
  const auto first = [&](const std::vector<std::string>& rules) {
    return Partitioned(manifest, rules)[0].partition;
  };
  EXPECT_EQ(first({"other=1"}), (Partition{.dim = 0, .place = InLayer(3)}));
  EXPECT_EQ(first({"*.kernel=1/3"}), (Partition{.dim = 1, .sections = 3, .place = InLayer(3)}));
  EXPECT_EQ(first({"*=1", "*.mixer.*=whole"}), (Partition{.place = InLayer(3)}));
  EXPECT_EQ(first({"blocks.#.*=layer"}), (Partition{.dim = 0, .place = InLayer(11)}));
  EXPECT_EQ(first({"blocks.#.*=1"}), (Partition{.dim = 1, .place = InLayer(11)}));
  EXPECT_EQ(first({"*=0,padded,both"}), (Partition{.dim = 0, .padded = true, .place = kBothEnds}));
  EXPECT_EQ(first({"*=first"}), (Partition{.dim = 0, .place = kBeforeLayers}));
  EXPECT_EQ(first({"*=last"}), (Partition{.dim = 0, .place = kAfterLayers}));
  // They are rules for parameters, which their state follows.
  const auto tensors = Partitioned(manifest, {"blocks.#.*=1/3"});
  EXPECT_EQ(tensors[1].partition, tensors[0].partition);
  EXPECT_EQ(tensors[2].partition, (Partition{.place = InLayer(11)}));
}

TEST(PartitionRulesTest, WhatDoesNotFitIsRefused) {
  const Manifest manifest = OneParameter("w", {8, 8});
  for (const char* text : {"w=2", "w=0/3", "w=1,padded"}) {
    ASSERT_OK_AND_ASSIGN(const auto rule, ParsePartitionRule(text));
    EXPECT_FALSE(PartitionTensors(manifest, {rule}).ok()) << text;
  }
  for (const char* bad : {"", "w", "=1", "w=", "w=-1", "w=1x", "w=99", "w=1/0", "w=1/2/3", "w=1,2",
                          "w=layer", "w=first,last", "w=whole,1", "w=1,", "#=first,layer"}) {
    EXPECT_FALSE(ParsePartitionRule(bad).ok()) << bad;
  }
}

TEST(PartitionRulesTest, Patterns) {
  int64_t layer = -1;
  EXPECT_TRUE(MatchesPattern("*", "", layer));
  EXPECT_TRUE(MatchesPattern("a*c*", "abcc", layer));
  EXPECT_TRUE(MatchesPattern("*ab", "aab", layer));
  EXPECT_FALSE(MatchesPattern("a*c", "abd", layer));
  EXPECT_FALSE(MatchesPattern("", "a", layer));
  EXPECT_EQ(layer, -1);
  EXPECT_TRUE(MatchesPattern("h.#.w*", "h.12.w1", layer));
  EXPECT_EQ(layer, 12);
  EXPECT_TRUE(MatchesPattern("a=b", "a=b", layer));
  for (const char* text : {"h..w", "h.x.w", "h.1x.w", "h.99999999999999999999.w"}) {
    EXPECT_FALSE(MatchesPattern("h.#.w", text, layer)) << text;
  }
}

}  // namespace
}  // namespace tessera::ckpt
