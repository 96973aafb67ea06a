#include "trainer/parallel/topology.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig Model() {
  ModelConfig model;
  model.set_num_layers(6);
  model.set_num_attention_heads(8);
  model.set_num_query_groups(4);
  model.set_ffn_hidden_size(96);
  return model;
}

constexpr BatchSizes kBatch{.micro_batch = 2, .global_batch = 24, .sequence_length = 32};

TEST(TopologyTest, TensorIsFastestThenDataThenPipeline) {
  const Topology topology{.tensor = 2, .data = 3, .pipeline = 2};
  EXPECT_EQ(topology.world_size(), 12);
  EXPECT_EQ(topology.CoordinateOf(0), (Coordinate{0, 0, 0}));
  EXPECT_EQ(topology.CoordinateOf(1), (Coordinate{.tensor = 1, .data = 0, .pipeline = 0}));
  EXPECT_EQ(topology.CoordinateOf(2), (Coordinate{.tensor = 0, .data = 1, .pipeline = 0}));
  EXPECT_EQ(topology.CoordinateOf(6), (Coordinate{.tensor = 0, .data = 0, .pipeline = 1}));
  EXPECT_THAT(topology.GroupOf(9, Axis::kTensor), ElementsAre(8, 9));
  EXPECT_THAT(topology.GroupOf(9, Axis::kData), ElementsAre(7, 9, 11));
  EXPECT_THAT(topology.GroupOf(9, Axis::kPipeline), ElementsAre(3, 9));
}

// Groups of one axis part the world, and a rank's three groups meet in the rank alone.
TEST(TopologyTest, CoordinatesAndGroupsAreConsistentForAllSizes) {
  for (int tensor = 1; tensor <= 4; ++tensor) {
    for (int data = 1; data <= 4; ++data) {
      for (int pipeline = 1; pipeline <= 4; ++pipeline) {
        const Topology topology{.tensor = tensor, .data = data, .pipeline = pipeline};
        for (int rank = 0; rank < topology.world_size(); ++rank) {
          EXPECT_EQ(topology.RankOf(topology.CoordinateOf(rank)), rank);
          for (const Axis axis : {Axis::kTensor, Axis::kData, Axis::kPipeline}) {
            const std::vector<int> group = topology.GroupOf(rank, axis);
            EXPECT_EQ(group.size(), static_cast<size_t>(topology.size(axis)));
            EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
            for (const int other : group) EXPECT_EQ(topology.GroupOf(other, axis), group);
          }
        }
      }
    }
  }
}

TEST(TopologyTest, TextGoesBothWays) {
  for (const char* text :
       {"single", "dp4_zero2_tp2_pp2", "tp8", "pp2_vpp2", "tp2_sp", "dp3_zero1"}) {
    const absl::StatusOr<Topology> topology = ParseTopology(text);
    ASSERT_TRUE(topology.ok()) << topology.status();
    EXPECT_EQ(ToString(*topology), text);
  }
  EXPECT_EQ(*ParseTopology("tp2_dp4"), (Topology{.tensor = 2, .data = 4}));
  for (const char* text : {"", "dp", "dp4_", "xp3", "dp0", "dp-1", "zero3", "vpp2", "sp", "tp2x",
                           "dp2_dp4", "sp_tp2_sp"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTopology(text).status())) << text;
  }
}

TEST(TopologyTest, MoreRanksThanAnybodyHasAreRefused) {
  EXPECT_TRUE(ParseTopology("dp262144_tp8_pp8").ok());
  for (const char* text : {"dp262145_tp8_pp8", "dp2147483647_tp2147483647_pp2147483647",
                           "dp65536_tp65536", "tp46341_pp46341"}) {
    const absl::Status status = ParseTopology(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(" is more than 16777216 processes"));
  }
}

TEST(TopologyTest, WhatCannotBeSplitIsNamed) {
  const auto message = [](const Topology& topology) {
    return std::string(ValidateTopology(topology, Model(), kBatch).message());
  };
  EXPECT_EQ(message({.tensor = 4, .data = 3, .pipeline = 3, .virtual_pipeline = 1}), "");
  EXPECT_THAT(message({.tensor = 3}), HasSubstr("num_attention_heads = 8"));
  EXPECT_THAT(message({.tensor = 8}), AllOf(HasSubstr("num_query_groups = 4"),
                                            HasSubstr("tensor_model_parallel_size = 8")));
  EXPECT_THAT(message({.pipeline = 7}), HasSubstr("num_layers = 6"));
  EXPECT_THAT(message({.pipeline = 4, .virtual_pipeline = 2}), HasSubstr("8 pipeline chunks"));
  EXPECT_THAT(message({.data = 5}),
              AllOf(HasSubstr("global_batch_size 24"), HasSubstr("data_parallel_size 5")));
  EXPECT_THAT(message({.data = 4, .pipeline = 2, .virtual_pipeline = 2}),
              HasSubstr("micro-batches"));
  EXPECT_THAT(message({.data = 0}), HasSubstr("data_parallel_size = 0"));
  EXPECT_THAT(message({.zero_stage = 3}), HasSubstr("zero_stage = 3"));
  EXPECT_THAT(message({.virtual_pipeline = 2}), HasSubstr("pipeline_model_parallel_size"));
  EXPECT_THAT(message({.sequence_parallel = true}), HasSubstr("tensor_model_parallel_size"));
}

TEST(TopologyTest, RowsAreSplitNotSequences) {
  const Topology split{.tensor = 2, .sequence_parallel = true};
  const BatchSizes even{.micro_batch = 2, .global_batch = 4, .sequence_length = 33};
  EXPECT_TRUE(ValidateTopology(split, Model(), even).ok());
  const BatchSizes odd{.micro_batch = 1, .global_batch = 4, .sequence_length = 33};
  EXPECT_EQ(ValidateTopology(split, Model(), odd).message(),
            "micro_batch_size * seq_length = 33 is no multiple of tensor_model_parallel_size = 2");
  EXPECT_EQ(ValidateTopology({}, Model(), odd, 2).message(),
            "micro_batch_size * seq_length = 33 is no multiple of exact_tp_shards = 2");
  EXPECT_TRUE(ValidateTopology({}, Model(), odd, 1).ok());
}

TEST(TopologyTest, ExactNumericsSplitIntoVirtualShards) {
  const auto message = [](const Topology& topology, int shards) {
    return std::string(ValidateTopology(topology, Model(), kBatch, shards).message());
  };
  EXPECT_EQ(VirtualShards({.tensor = 2}, 0), 2);
  EXPECT_EQ(VirtualShards({.tensor = 2}, 4), 4);
  for (const int tensor : {1, 2, 4}) EXPECT_EQ(message({.tensor = tensor}, 4), "");
  EXPECT_EQ(message({}, 3), "exact_tp_shards = 3 is no power of two");
  EXPECT_EQ(message({}, -4), "exact_tp_shards = -4 is no power of two");
  EXPECT_EQ(message({.tensor = 4}, 2),
            "exact_tp_shards = 2 is no multiple of tensor_model_parallel_size = 4");
  EXPECT_EQ(message({.tensor = 3}, 4),
            "exact_tp_shards = 4 is no multiple of tensor_model_parallel_size = 3");
  EXPECT_EQ(message({.tensor = 2}, 8),
            "num_query_groups = 4 is no multiple of exact_tp_shards = 8");
}

// kBatch has 12 micro-batches.
TEST(TopologyTest, ExactNumericsNeedWholeSubtreesOfMicroBatches) {
  const auto valid = [](int data, int zero_stage, int shards) {
    return ValidateTopology({.data = data, .zero_stage = zero_stage}, Model(), kBatch, shards).ok();
  };
  for (const int zero_stage : {0, 1}) {
    EXPECT_TRUE(valid(1, zero_stage, 1));   // all 12 on one rank
    EXPECT_FALSE(valid(2, zero_stage, 1));  // 6 each
    EXPECT_TRUE(valid(3, zero_stage, 1));   // 4 each
    EXPECT_TRUE(valid(6, zero_stage, 1));
    EXPECT_TRUE(valid(12, zero_stage, 1));
    EXPECT_TRUE(valid(2, zero_stage, 0));
  }
  EXPECT_TRUE(valid(1, 2, 1));
  EXPECT_TRUE(valid(2, 2, 1));
  EXPECT_TRUE(valid(4, 2, 1));
  EXPECT_FALSE(valid(3, 2, 1));  // 4 times 3
  EXPECT_TRUE(valid(12, 2, 1));  // once
  EXPECT_TRUE(valid(3, 2, 0));
  const std::string message(ValidateTopology({.data = 2}, Model(), kBatch, 1).message());
  EXPECT_THAT(message, AllOf(HasSubstr("global_batch_size"), HasSubstr("micro_batch_size"),
                             HasSubstr("data_parallel_size"), HasSubstr("power of two")));
}

std::vector<int64_t> LayerCounts(int64_t num_layers, const Topology& topology,
                                 int64_t head_layers = 0) {
  std::vector<int64_t> counts;
  int64_t next = 0;
  const int stages = topology.pipeline * topology.virtual_pipeline;
  for (int stage = 0; stage < stages; ++stage) {
    const ChunkLayers layers = LayersOfChunk(num_layers, head_layers, topology,
                                             stage % topology.pipeline, stage / topology.pipeline);
    EXPECT_EQ(layers.first, next);
    EXPECT_EQ(layers.has_embedding, stage == 0);
    EXPECT_EQ(layers.has_head, stage == stages - 1);
    next = layers.last;
    counts.push_back(layers.last - layers.first);
  }
  EXPECT_EQ(next, num_layers);
  return counts;
}

TEST(TopologyTest, LayersLiterally) {
  EXPECT_THAT(LayerCounts(6, {}), ElementsAre(6));
  EXPECT_THAT(LayerCounts(12, {.pipeline = 4}), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(LayerCounts(6, {.pipeline = 4}), ElementsAre(1, 2, 2, 1));
  EXPECT_THAT(LayerCounts(7, {.pipeline = 4}), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(LayerCounts(5, {.pipeline = 2, .virtual_pipeline = 2}), ElementsAre(1, 1, 2, 1));
}

// GPT-2 124M's head costs as much as five layers.
TEST(TopologyTest, TheHeadCountsAsLayers) {
  EXPECT_THAT(LayerCounts(12, {.pipeline = 2}, 5), ElementsAre(9, 3));
  EXPECT_THAT(LayerCounts(12, {.pipeline = 4}, 5), ElementsAre(3, 4, 4, 1));
  EXPECT_THAT(LayerCounts(2, {.pipeline = 2}, 5), ElementsAre(1, 1));
  EXPECT_THAT(LayerCounts(32, {.pipeline = 4}, 2), ElementsAre(8, 9, 9, 6));
  ModelConfig gpt2;
  gpt2.set_architecture(ModelConfig::GPT2);
  gpt2.set_hidden_size(768);
  gpt2.set_ffn_hidden_size(4 * 768);
  gpt2.set_num_attention_heads(12);
  gpt2.set_num_query_groups(12);
  gpt2.set_vocab_size(50257);
  EXPECT_EQ(HeadInLayers(gpt2), 5);
}

TEST(TopologyTest, LayersAreSpreadEvenlyAndTheLastStageHasNoMoreThanOthers) {
  for (int pipeline = 1; pipeline <= 5; ++pipeline) {
    for (int chunks = 1; chunks <= (pipeline == 1 ? 1 : 3); ++chunks) {
      const Topology topology{.pipeline = pipeline, .virtual_pipeline = chunks};
      for (int64_t layers = pipeline * chunks; layers < 40; ++layers) {
        SCOPED_TRACE(ToString(topology) + ", " + std::to_string(layers) + " layers");
        const std::vector<int64_t> counts = LayerCounts(layers, topology);
        const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end());
        EXPECT_LE(*most - *fewest, 1);
        EXPECT_EQ(counts.back(), *fewest);
        std::vector<int64_t> of_rank(pipeline);
        for (size_t i = 0; i < counts.size(); ++i) of_rank[i % pipeline] += counts[i];
        const auto [least, highest] = std::minmax_element(of_rank.begin(), of_rank.end());
        EXPECT_LE(*highest - *least, 1);
        EXPECT_EQ(of_rank.back(), *least);
      }
    }
  }
}

TEST(TopologyTest, EverySizeMustBePositive) {
  for (const BatchSizes& batch : {BatchSizes{.micro_batch = 0}, BatchSizes{.global_batch = 0},
                                  BatchSizes{.sequence_length = 0}}) {
    EXPECT_THAT(std::string(ValidateTopology({}, Model(), batch).message()),
                HasSubstr(" = 0 is below 1"));
  }
}

}  // namespace
}  // namespace tessera
