// Tensor and sequence parallelism: results that are bitwise equal for any number of ranks, and
// close for different numbers of shards.

#include <cstdint>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "comm/threads/thread_world.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/reference/reference_backend.h"
#include "compute/kernels/testing/compare.h"
#include "gtest/gtest.h"
#include "models/registry.h"
#include "models/testing/sharded_run.h"
#include "models/testing/test_model.h"

namespace tessera {
namespace {

using testing::ExpectBitwiseEqual;
using testing::ExpectClose;
using testing::ExpectSameBits;
using testing::Logical;
using testing::RunSharded;
using testing::ShardedGpt2;
using testing::ShardedLlama3;
using testing::ShardedResult;
using testing::ShardedRun;
using testing::WithDropout;

struct Family {
  std::string name;
  ModelConfig config;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class TensorParallelModelTest : public ::testing::TestWithParam<Family> {
 protected:
  ShardedRun Base(DType dtype, int shards) const {
    ShardedRun run;
    run.config = GetParam().config;
    run.dtype = dtype;
    run.shards = shards;
    return run;
  }
};

std::string Describe(const ShardedRun& run) {
  return std::string(DTypeName(run.dtype)) + ", " + std::to_string(run.shards) + " shards, tp" +
         std::to_string(run.ranks) + (run.sequence_parallel ? "_sp" : "") +
         (run.use == ActivationUse::kTrainingRecompute   ? ", recompute"
          : run.use == ActivationUse::kTrainingWithNorms ? ", norms kept"
                                                         : "");
}

void ExpectNear(const ShardedResult& actual, const ShardedResult& expected, double tolerance) {
  EXPECT_NEAR(actual.loss / expected.loss, 1, tolerance);
  ExpectClose(actual.last_logits, expected.last_logits, {.of_maximum = tolerance}, "logits");
  const auto grads = Logical(actual, actual.grads);
  for (const auto& [name, tensor] : Logical(expected, expected.grads)) {
    ASSERT_TRUE(grads.contains(name)) << name;
    ExpectClose(grads.at(name), tensor, {.absolute = tolerance, .of_maximum = tolerance}, name);
  }
}

// The same function for every number of shards and ranks.
TEST_P(TensorParallelModelTest, ShardsChangeNothingButRounding) {
  const ShardedResult whole = RunSharded(Base(DType::kF64, 1));
  for (const auto& [shards, ranks] : {std::pair(2, 1), {4, 1}, {4, 2}, {4, 4}}) {
    ShardedRun run = Base(DType::kF64, shards);
    run.ranks = ranks;
    run.sequence_parallel = ranks == 2;
    const ShardedResult sharded = RunSharded(run);
    // Statistics, and logits for sampling, are fp32; the rest is fp64.
    EXPECT_NEAR(sharded.loss / whole.loss, 1, 1e-12);
    const auto grads = Logical(sharded, sharded.grads);
    for (const auto& [name, tensor] : Logical(whole, whole.grads)) {
      ExpectClose(grads.at(name), tensor, {.absolute = 1e-13, .of_maximum = 1e-12}, name);
    }
    ExpectClose(sharded.last_logits, whole.last_logits, {.of_maximum = 1e-6}, "logits");
  }
}

TEST_P(TensorParallelModelTest, ValuesAreTheSameForAnySharding) {
  const ShardedResult whole = RunSharded(Base(DType::kF32, 1));
  const auto expected = Logical(whole, whole.values);
  for (const int ranks : {1, 2, 4}) {
    ShardedRun run = Base(DType::kF32, 4);
    run.ranks = ranks;
    const ShardedResult sharded = RunSharded(run);
    const auto values = Logical(sharded, sharded.values);
    EXPECT_EQ(values.size(), expected.size());
    for (const auto& [name, tensor] : expected) ExpectBitwiseEqual(values.at(name), tensor, name);
  }
}

// Two of the shards on a rank or one; what activations keep differs where there are most ranks.
TEST_P(TensorParallelModelTest, NoBitDependsOnTheRanks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ShardedRun run = Base(dtype, 4);
    run.micro_batches = 2;
    const ShardedResult expected = RunSharded(run);
    for (const int ranks : {1, 2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        for (const auto use : {ActivationUse::kTraining, ActivationUse::kTrainingWithNorms,
                               ActivationUse::kTrainingRecompute}) {
          if (ranks == 1 && sequence_parallel) continue;
          const bool recomputes = use == ActivationUse::kTrainingRecompute;
          if (ranks == 2 && use != ActivationUse::kTraining && !(recomputes && sequence_parallel)) {
            continue;
          }
          run.ranks = ranks;
          run.sequence_parallel = sequence_parallel;
          run.use = use;
          ExpectSameBits(RunSharded(run), expected, Describe(run));
        }
      }
    }
  }
}

// FAST: as many shards as ranks, also for numbers that are not powers of two.
TEST_P(TensorParallelModelTest, PlainTensorParallelismIsNearOneRank) {
  ShardedRun run = Base(DType::kF32, 1);
  run.config.set_num_attention_heads(12);
  run.config.set_num_query_groups(12);
  run.config.set_hidden_size(48);
  run.config.set_ffn_hidden_size(36);
  const ShardedResult whole = RunSharded(run);
  for (const int ranks : {2, 3, 4, 6}) {
    run.shards = run.ranks = ranks;
    run.sequence_parallel = ranks != 2;
    ExpectNear(RunSharded(run), whole, 1e-5);
  }
}

// Rows that are not divisible by the shards stay whole, and give the same bits.
TEST_P(TensorParallelModelTest, UnevenRowsAreNotSplit) {
  for (const int64_t sequence : {1, 5}) {
    ShardedRun run = Base(DType::kF32, 4);
    run.batch = 3;
    run.sequence = sequence;
    const ShardedResult expected = RunSharded(run);
    run.ranks = 4;
    for (const bool sequence_parallel : {false, true}) {
      run.sequence_parallel = sequence_parallel;
      ExpectSameBits(RunSharded(run), expected, Describe(run));
    }
  }
}

// A tied table has its two contributions on the stages that compute them; a single stage can keep
// them separate.
TEST_P(TensorParallelModelTest, StagesTogetherAreTheModel) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ShardedRun run = Base(dtype, 4);
    run.config.set_num_layers(3);
    run.micro_batches = 2;
    run.separate_tied_gradients = true;
    ShardedResult expected = RunSharded(run);
    for (auto it = expected.grads.begin(); it != expected.grads.end();) {
      auto next = std::next(it);
      if (const size_t end = it->first.find("/second"); end != std::string::npos) {
        auto node = expected.grads.extract(it);
        node.key().replace(end, std::string::npos, "/last");
        expected.grads.insert(std::move(node));
      }
      it = next;
    }
    run.stages = {ChunkLayers{.last = 1, .has_embedding = true}, ChunkLayers{.first = 1, .last = 2},
                  ChunkLayers{.first = 2, .last = run.config.num_layers(), .has_head = true}};
    for (const int ranks : {1, 2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        run.ranks = ranks;
        run.sequence_parallel = sequence_parallel;
        ExpectSameBits(RunSharded(run), expected, Describe(run));
      }
    }
  }
}

TEST_P(TensorParallelModelTest, ActivationsShrinkWithRanks) {
  ShardedRun run = Base(DType::kF32, 4);
  run.batch = 4;
  int64_t bytes[3];
  for (int i = 0; i < 3; ++i) {
    run.ranks = i == 0 ? 1 : 4;
    run.sequence_parallel = i == 2;
    bytes[i] = RunSharded(run).activation_bytes;
  }
  EXPECT_LT(bytes[1], bytes[0] * 3 / 4);
  EXPECT_LT(bytes[2], bytes[1] * 3 / 4);
}

// One rank aborts: the other's pass returns its error, forward or backward.
TEST_P(TensorParallelModelTest, ErrorsOfRanksComeBack) {
  for (const bool in_backward : {false, true}) {
    for (const bool sequence_parallel : {false, true}) {
      ThreadWorld world(2);
      absl::Status met;
      const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
        const auto backend = MakeCpuBackend(1);
        const TensorParallel tensor_parallel(&comm, 2, sequence_parallel);
        ModelOptions options;
        options.tensor_parallel = &tensor_parallel;
        const auto model = testing::MakeTestModel(GetParam().config, options, *backend);
        const auto data = testing::MakeTestBatch(2, 4, GetParam().config.vocab_size(), 1);
        const auto activations = model->NewActivations(2, 4, ActivationUse::kTraining);
        const bool fails = comm.rank() == 1;
        if (fails && !in_backward) return absl::DataLossError("bad file");
        const auto loss = model->Forward(data.batch, *activations, {}, {});
        if (fails) return absl::DataLossError("bad file");
        if (!in_backward) return met = loss.status();
        return met = model->Backward(data.batch, *activations, 1, false, {}, {}, nullptr);
      });
      EXPECT_EQ(met.code(), absl::StatusCode::kDataLoss) << met;
      EXPECT_EQ(status.message(), "rank 1: bad file");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelModelTest,
                         ::testing::Values(Family{"Gpt2", WithDropout(ShardedGpt2())},
                                           Family{"Llama3Tied", WithDropout(ShardedLlama3(true))},
                                           Family{"Llama3Untied",
                                                  WithDropout(ShardedLlama3(false))}),
                         [](const auto& info) { return info.param.name; });

TEST(TensorParallelFactoryTest, WhatShardsDoNotDivideIsNamed) {
  const auto backend = MakeReferenceBackend();
  const auto message = [&](const ModelConfig& config, int shards) {
    const TensorParallel tensor_parallel(nullptr, shards, false);
    ModelOptions options;
    options.tensor_parallel = &tensor_parallel;
    const auto model = MakeModel(config, options, *backend);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(model.status().message());
  };
  EXPECT_EQ(message(ShardedGpt2(), 8),
            "num_attention_heads is 4: the number of tensor-parallel shards (8) must divide it");
  EXPECT_EQ(message(ShardedLlama3(true), 8),
            "num_query_groups is 4: the number of tensor-parallel shards (8) must divide it");
  ModelConfig odd = ShardedGpt2();
  odd.set_ffn_hidden_size(30);
  EXPECT_EQ(message(odd, 4),
            "ffn_hidden_size is 30: the number of tensor-parallel shards (4) must divide it");
}

}  // namespace
}  // namespace tessera
