// Whole models are trained on simulated GPUs, one a rank. Kernels, copies and messages run late and
// in adversarial order, in memory that host code cannot touch. A transfer between host and device
// that is not an explicit copy ends the process. A missing wait for an event changes the losses.
// The results have the bits of processors, in EXACT numerics.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "tensor/tensor.h"
#include "tests/device/simulated_gpus.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

constexpr int64_t kSteps = 2;
constexpr int64_t kVocabulary = 48;
constexpr uint64_t kSeed = 5;

constexpr char kGpt2[] =
    "size: \"gpt2-tiny\" num_layers: 2 hidden_size: 16 ffn_hidden_size: 64 num_attention_heads: 2 "
    "vocab_size: 48 hidden_dropout: 0.1 attention_dropout: 0.1";
constexpr char kLlama[] =
    "size: \"llama3-tiny\" num_layers: 2 hidden_size: 32 ffn_hidden_size: 48 "
    "num_attention_heads: 4 num_query_groups: 2 vocab_size: 48";

TrainConfig Config(const std::string& model, const std::string& topology) {
  const std::string tokens = absl::StrCat(::testing::TempDir(), "/tokens.bin");
  EXPECT_OK(testing::WriteTokens(tokens, kVocabulary, 1000));
  return OrFail(testing::MakeConfig({.model = model,
                                     .tokens = tokens,
                                     .topology = topology,
                                     .exact_shards = 2,
                                     .micro_batch_size = 1,
                                     .global_batch_size = 4,
                                     .seq_length = 8,
                                     .steps = kSteps,
                                     .bucket_elements = 1000}));
}

// What rank 0 has seen.
struct Curve {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  double evaluation = 0;
  std::vector<float> logits;

  bool operator==(const Curve&) const = default;
};

absl::Status TrainRank(const TrainConfig& config, Communicator& host,
                       const testing::RankDevice& device, Curve* curve) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<testing::TrainingRank> rank,
      testing::TrainingRank::Create(config, kSeed, &host, /*log=*/nullptr, device));
  rank->Initialize();
  Curve seen;
  for (int64_t step = 0; step < kSteps; ++step) {
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, rank->Step());
    seen.losses.push_back(result.loss);
    seen.grad_norms.push_back(result.grad_norm);
  }
  TESSERA_ASSIGN_OR_RETURN(const EvaluationResult evaluation,
                           rank->trainer().Evaluate(rank->data(), 4));
  seen.evaluation = evaluation.loss;
  const std::vector<int32_t> context = {1, 5, 2, 7, 3};
  TESSERA_ASSIGN_OR_RETURN(seen.logits, rank->trainer().NextLogits(context));
  if (host.rank() == 0) *curve = std::move(seen);
  return device.backend == nullptr ? absl::OkStatus() : device.backend->Synchronize();
}

absl::StatusOr<Curve> TrainOnCpu(const TrainConfig& config) {
  Curve curve;
  ThreadWorld world(ConfigTopology(config).world_size());
  TESSERA_RETURN_IF_ERROR(world.Run(
      [&](Communicator& host) { return TrainRank(config, host, testing::RankDevice(), &curve); }));
  return curve;
}

absl::StatusOr<Curve> TrainOnDevices(const TrainConfig& config,
                                     const SimulationSettings& settings) {
  Curve curve;
  TESSERA_RETURN_IF_ERROR(RunOnSimulatedGpus(
      ConfigTopology(config).world_size(), settings,
      [&](Communicator& host, Communicator& devices, SimulatedDevice& gpu) {
        return TrainRank(config, host, {.backend = gpu.backend.get(), .world = &devices}, &curve);
      }));
  return curve;
}

class SimulatedTrainingTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, SimulatedTrainingTest, ::testing::Values(kGpt2, kLlama),
                         [](const auto& info) {
                           return std::string(info.param == kGpt2 ? "Gpt2" : "Llama3");
                         });

// Each model has every axis; on processors, //tests/exact has every model on every topology.
TEST_P(SimulatedTrainingTest, HasTheBitsOfTheCpuOnEveryTopology) {
  ASSERT_OK_AND_ASSIGN(const Curve cpu, TrainOnCpu(Config(GetParam(), "single")));
  uint64_t seed = 0;
  const std::vector<std::string> of_gpt2 = {"single", "dp2", "dp2_zero2", "tp2_sp", "pp2"};
  const std::vector<std::string> of_llama3 = {"single", "dp2_zero1", "tp2", "dp2_zero2_tp2_pp2"};
  for (const std::string& topology : GetParam() == kGpt2 ? of_gpt2 : of_llama3) {
    ASSERT_OK_AND_ASSIGN(const Curve device,
                         TrainOnDevices(Config(GetParam(), topology), {.seed = seed++}));
    EXPECT_EQ(device, cpu) << topology;
  }
}

TEST_P(SimulatedTrainingTest, AMicroBatchThatIsRepeatedChangesNoBit) {
  ASSERT_OK_AND_ASSIGN(const Curve without, TrainOnCpu(Config(GetParam(), "single")));
  uint64_t seed = 2;
  const std::vector<std::string> of_gpt2 = {"single", "pp2"}, of_llama3 = {"dp2_zero2"};
  for (const std::string& topology : GetParam() == kGpt2 ? of_gpt2 : of_llama3) {
    TrainConfig config = Config(GetParam(), topology);
    config.mutable_parallel()->set_replay_check_interval(1);
    const absl::StatusOr<Curve> with = TrainOnDevices(config, {.seed = seed++});
    ASSERT_OK(with) << topology;
    EXPECT_EQ(*with, without) << topology;
  }
}

// A norm without a bias has memory of its own on the device.
TEST(SimulatedTrainingBiasTest, AModelWithoutBiasesHasTheBitsOfTheCpu) {
  const TrainConfig config = Config(
      "size: \"gpt2-tiny\" num_layers: 2 hidden_size: 16 ffn_hidden_size: 64 "
      "num_attention_heads: 2 vocab_size: 48 use_biases: false",
      "tp2");
  ASSERT_OK_AND_ASSIGN(const Curve cpu, TrainOnCpu(config));
  ASSERT_OK_AND_ASSIGN(const Curve device, TrainOnDevices(config, {.seed = 1}));
  EXPECT_EQ(device, cpu);
}

TEST(SimulatedTrainingWaitTest, MessagesThatDoNotWaitForTheirDataAreFound) {
  const TrainConfig config = Config(kGpt2, "dp2");
  ASSERT_OK_AND_ASSIGN(const Curve right, TrainOnDevices(config, {.seed = 3}));
  const absl::StatusOr<Curve> wrong =
      TrainOnDevices(config, {.seed = 3, .drops_wait = [](int64_t) { return true; }});
  EXPECT_FALSE(wrong.ok() && *wrong == right);
}

TEST(SimulatedTrainingDeathTest, HostCodeThatReadsDeviceMemoryIsFound) {
  const std::unique_ptr<SimulatedDevice> gpu = OpenSimulatedDevice(0);
  const Tensor tensor(DType::kF32, {4}, {DeviceType::kCuda, 0});
  gpu->backend->Fill({tensor, 3});
  std::vector<float> values(4);
  gpu->backend->Download(tensor, values.data());
  EXPECT_EQ(values, std::vector<float>(4, 3.0f));
  EXPECT_DEATH(values[0] = tensor.view().as<float>()[0], "");
}

}  // namespace
}  // namespace tessera
