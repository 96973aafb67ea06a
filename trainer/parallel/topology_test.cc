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
  for (const char* text : {"", "dp", "dp4_", "xp3", "dp0", "dp-1", "zero3", "vpp2", "sp", "tp2x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTopology(text).status())) << text;
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
  EXPECT_THAT(message({.data = 5}), HasSubstr("global_batch_size = 24"));
  EXPECT_THAT(message({.data = 4, .pipeline = 2, .virtual_pipeline = 2}),
              HasSubstr("micro-batches"));
  EXPECT_THAT(message({.data = 0}), HasSubstr("data_parallel_size = 0"));
  EXPECT_THAT(message({.zero_stage = 3}), HasSubstr("zero_stage = 3"));
  EXPECT_THAT(message({.virtual_pipeline = 2}), HasSubstr("pipeline_model_parallel_size"));
  EXPECT_THAT(message({.sequence_parallel = true}), HasSubstr("tensor_model_parallel_size"));
}

TEST(TopologyTest, UnevenLayersAndSequenceParallelismAreFine) {
  EXPECT_TRUE(ValidateTopology({.pipeline = 4}, Model(), kBatch).ok());
  EXPECT_TRUE(ValidateTopology({.tensor = 2, .sequence_parallel = true}, Model(), kBatch).ok());
  const BatchSizes odd{.micro_batch = 1, .global_batch = 4, .sequence_length = 33};
  EXPECT_FALSE(ValidateTopology({.tensor = 2, .sequence_parallel = true}, Model(), odd).ok());
}

}  // namespace
}  // namespace tessera
