#include "trainer/config/choose_topology.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// 12 layers, 8 heads in 4 groups.
ModelConfig ChosenModel() {
  ModelConfig model;
  model.set_architecture(ModelConfig::LLAMA3);
  model.set_num_layers(12);
  model.set_hidden_size(64);
  model.set_num_attention_heads(8);
  model.set_num_query_groups(4);
  model.set_ffn_hidden_size(256);
  model.set_vocab_size(1000);
  return model;
}

constexpr BatchSizes kChosenBatch = {.micro_batch = 2, .global_batch = 48, .sequence_length = 32};

std::string Choose(const std::string& wanted, int world_size, int exact_tp_shards = 0) {
  const absl::StatusOr<Topology> chosen = ChooseTopology(
      *ParseTopology(wanted), world_size, ChosenModel(), kChosenBatch, exact_tp_shards);
  return chosen.ok() ? ToString(*chosen) : std::string(chosen.status().message());
}

TEST(ChooseTopologyTest, WhatIsWantedWhereItFits) {
  EXPECT_EQ(Choose("dp4_zero2_tp2_pp2", 16), "dp4_zero2_tp2_pp2");
  EXPECT_EQ(Choose("single", 1), "single");
  EXPECT_EQ(Choose("dp2_pp2_vpp2", 4), "dp2_pp2_vpp2");
}

TEST(ChooseTopologyTest, DataParallelismTakesUpMoreOrFewerRanks) {
  EXPECT_EQ(Choose("dp4_zero2_tp2_pp2", 8), "dp2_zero2_tp2_pp2");
  EXPECT_EQ(Choose("dp4_zero2_tp2_pp2", 12), "dp3_zero2_tp2_pp2");
  EXPECT_EQ(Choose("dp4_zero2_tp2_pp2", 4), "zero2_tp2_pp2");
  EXPECT_EQ(Choose("dp4_zero2_tp2_pp2_sp", 32), "dp8_zero2_tp2_pp2_sp");
  EXPECT_EQ(Choose("single", 8), "dp8");
}

TEST(ChooseTopologyTest, TheReplicaShrinksWhereItMust) {
  EXPECT_EQ(Choose("dp4_tp2_pp2", 2), "tp2");
  EXPECT_EQ(Choose("dp4_tp2_pp2_sp", 1), "single");
  EXPECT_EQ(Choose("tp4_sp", 2), "tp2_sp");
  // Six ranks cannot form groups of four: the nearest is six, then three, two.
  EXPECT_EQ(Choose("dp4_tp2_pp2", 6), "dp2_pp3");
  EXPECT_EQ(Choose("pp2_vpp4", 3), "pp3_vpp4");
}

TEST(ChooseTopologyTest, NothingFits) {
  // 24 micro-batches are not divisible by 5 replicas, nor 4 groups by 5, but 12 layers fit 5
  // stages.
  EXPECT_EQ(Choose("dp4", 5), "pp5");
  EXPECT_EQ(
      Choose("dp4", 13),
      "topology=auto: the model and the batch cannot be split over 13 processes; it goes with "
      "12 or 14");
  // 24 micro-batches and twelve stages of four tensor ranks are the maximum.
  EXPECT_THAT(Choose("dp4", 6007), HasSubstr("over 6007 processes; it goes with 1152"));
}

TEST(ChooseTopologyTest, NothingFitsAnyNumber) {
  BatchSizes batch = kChosenBatch;
  batch.global_batch = 47;
  const absl::Status status =
      ChooseTopology(*ParseTopology("dp4"), 8, ChosenModel(), batch, 0).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("global_batch_size 47"));
}

TEST(ChooseTopologyTest, ExactNumericsHaveTheirOwnRules) {
  // 24 micro-batches: a power of two for each of 3 or 6 replicas alone; at most two shards.
  EXPECT_EQ(Choose("dp4_tp2", 6, 2), "dp3_tp2");
  EXPECT_EQ(Choose("tp2", 8, 2), "tp2_pp4");
}

}  // namespace
}  // namespace tessera
