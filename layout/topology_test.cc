#include "layout/topology.h"

#include <algorithm>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
    ASSERT_OK_AND_ASSIGN(const Topology topology, ParseTopology(text));
    EXPECT_EQ(ToString(topology), text);
  }
  EXPECT_EQ(*ParseTopology("tp2_dp4"), (Topology{.tensor = 2, .data = 4}));
  for (const char* text :
       {"", "dp", "dp4_", "xp3", "dp0", "dp-1", "zero3", "vpp2", "sp", "tp2x", "dp2_dp4",
        "sp_tp2_sp", "4dp", "dp4__tp2", "dp99999999999", "pp16777216_vpp2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTopology(text).status())) << text;
  }
}

TEST(TopologyTest, MoreRanksThanAnyJobHasAreRefused) {
  EXPECT_OK(ParseTopology("dp262144_tp8_pp8"));
  for (const char* text : {"dp262145_tp8_pp8", "dp2147483647_tp2147483647_pp2147483647",
                           "dp65536_tp65536", "tp46341_pp46341"}) {
    const absl::Status status = ParseTopology(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(" is more than 16777216 processes"));
  }
  EXPECT_OK(ValidateSizes({.pipeline = 2, .virtual_pipeline = 1 << 23}));
  const absl::Status chunks = ValidateSizes({.pipeline = 2, .virtual_pipeline = (1 << 23) + 1});
  EXPECT_THAT(std::string(chunks.message()), HasSubstr(" is more than 16777216 pipeline chunks"));
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

TEST(TopologyTest, TheHeadCountsAsLayers) {
  EXPECT_THAT(LayerCounts(12, {.pipeline = 2}, 5), ElementsAre(9, 3));
  EXPECT_THAT(LayerCounts(12, {.pipeline = 4}, 5), ElementsAre(3, 4, 4, 1));
  EXPECT_THAT(LayerCounts(2, {.pipeline = 2}, 5), ElementsAre(1, 1));
  EXPECT_THAT(LayerCounts(32, {.pipeline = 4}, 2), ElementsAre(8, 9, 9, 6));
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

}  // namespace
}  // namespace tessera
