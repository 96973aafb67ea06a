#include <string>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/config/choose_topology.h"

namespace tessera {
namespace {

using ::testing::AllOf;
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

TEST(ValidateTopologyTest, WhatCannotBeSplitIsNamed) {
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

TEST(ValidateTopologyTest, RowsAreSplitNotSequences) {
  const Topology split{.tensor = 2, .sequence_parallel = true};
  const BatchSizes even{.micro_batch = 2, .global_batch = 4, .sequence_length = 33};
  EXPECT_OK(ValidateTopology(split, Model(), even));
  const BatchSizes odd{.micro_batch = 1, .global_batch = 4, .sequence_length = 33};
  EXPECT_EQ(
      ValidateTopology(split, Model(), odd).message(),
      "micro_batch_size * seq_length = 33 is not a multiple of tensor_model_parallel_size = 2");
  EXPECT_EQ(ValidateTopology({}, Model(), odd, 2).message(),
            "micro_batch_size * seq_length = 33 is not a multiple of exact_tp_shards = 2");
  EXPECT_OK(ValidateTopology({}, Model(), odd, 1));
}

TEST(ValidateTopologyTest, WithoutSequenceParallelismFastNumericsSplitNoRows) {
  ModelConfig model = Model();
  model.set_num_attention_heads(6);
  model.set_num_query_groups(3);
  const BatchSizes batch{.micro_batch = 1, .global_batch = 4, .sequence_length = 40};
  EXPECT_OK(ValidateTopology({.tensor = 3}, model, batch));
  EXPECT_EQ(
      ValidateTopology({.tensor = 3, .sequence_parallel = true}, model, batch).message(),
      "micro_batch_size * seq_length = 40 is not a multiple of tensor_model_parallel_size = 3");
}

TEST(ValidateTopologyTest, ExactNumericsSplitIntoVirtualShards) {
  const auto message = [](const Topology& topology, int shards) {
    return std::string(ValidateTopology(topology, Model(), kBatch, shards).message());
  };
  EXPECT_EQ(VirtualShards({.tensor = 2}, 0), 2);
  EXPECT_EQ(VirtualShards({.tensor = 2}, 4), 4);
  for (const int tensor : {1, 2, 4}) EXPECT_EQ(message({.tensor = tensor}, 4), "");
  EXPECT_EQ(message({}, 3), "exact_tp_shards = 3 is not a power of two");
  EXPECT_EQ(message({}, -4), "exact_tp_shards = -4 is not a power of two");
  EXPECT_EQ(
      message({.tensor = 4}, 2),
      "exact_tp_shards = 2 is less than tensor_model_parallel_size = 4: it must be a power of "
      "two that is at least as large");
  // Three ranks are refused before exact_tp_shards is looked at: no value of it goes with them.
  for (const int shards : {1, 3, 4, 6}) {
    EXPECT_EQ(
        message({.tensor = 3}, shards),
        "tensor_model_parallel_size = 3 is not a power of two: EXACT numerics go with powers of "
        "two up to exact_tp_shards = " +
            std::to_string(shards));
  }
  EXPECT_EQ(message({.tensor = 2}, 8),
            "num_query_groups = 4 is not a multiple of exact_tp_shards = 8");
}

// kBatch has 12 micro-batches.
TEST(ValidateTopologyTest, ExactNumericsNeedWholeSubtreesOfMicroBatches) {
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

TEST(ValidateTopologyTest, EverySizeMustBePositive) {
  for (const BatchSizes& batch : {BatchSizes{.micro_batch = 0}, BatchSizes{.global_batch = 0},
                                  BatchSizes{.sequence_length = 0}}) {
    EXPECT_THAT(std::string(ValidateTopology({}, Model(), batch).message()),
                HasSubstr(" = 0 is below 1"));
  }
}

}  // namespace
}  // namespace tessera
