// Checkpoints of models on simulated GPUs: the state is copied to pinned memory while training
// continues, and the update waits for the copies, piece by piece. Streams run late and in
// adversarial order, so that a copy that comes too early or too late changes the checkpoint.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/communicator.h"
#include "compute/device/testing/simulated_device.h"
#include "tests/device/simulated_gpus.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

using testing::RankDevice;
using testing::ReadDigests;
using testing::TrainingRank;

constexpr char kModel[] =
    "size: \"llama3-tiny\" num_layers: 1 hidden_size: 16 ffn_hidden_size: 32 "
    "num_attention_heads: 2 num_query_groups: 2 vocab_size: 32";
constexpr int64_t kSavedStep = 2;
constexpr int64_t kLastStep = 4;
constexpr uint64_t kSeed = 5;

class SimulatedCheckpointTest : public ::testing::Test {
 protected:
  // Saves to the folder `save`.
  TrainConfig Config(const std::string& topology, const std::string& save, bool async) const {
    const std::string tokens = absl::StrCat(::testing::TempDir(), "/tokens.bin");
    EXPECT_OK(testing::WriteTokens(tokens, /*vocabulary=*/32, /*count=*/1000));
    TrainConfig config = OrFail(testing::MakeConfig({.model = kModel,
                                                     .tokens = tokens,
                                                     .topology = topology,
                                                     .bf16 = true,
                                                     .micro_batch_size = 1,
                                                     .global_batch_size = 2,
                                                     .seq_length = 8,
                                                     .steps = kLastStep,
                                                     .bucket_elements = 1000}));
    config.mutable_checkpoint()->set_save(Folder(save));
    config.mutable_checkpoint()->set_async_save(async);
    return config;
  }

  static std::string Folder(const std::string& name) {
    return absl::StrCat(::testing::TempDir(), "/", name, "_",
                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
};

struct Plan {
  std::vector<int64_t> saves;  // after these steps
  int64_t last_step = kLastStep;
};

// Trains and saves as told.
absl::Status RunRank(const TrainConfig& config, const Plan& plan, Communicator& host,
                     const RankDevice& device) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> rank,
                           TrainingRank::Create(config, kSeed, &host, nullptr, device));
  rank->Initialize();
  while (true) {
    const int64_t step = rank->progress().step;
    for (const int64_t saved_step : plan.saves) {
      if (saved_step == step) TESSERA_RETURN_IF_ERROR(rank->Save());
    }
    if (step >= plan.last_step) break;
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
  }
  return rank->FinishSaves().status();
}

absl::Status RunOnDevices(const TrainConfig& config, const Plan& plan, SimulationSettings settings,
                          double bytes_per_second = 0) {
  settings.numerics = DeviceNumerics::kFast;  // in bf16
  return RunOnSimulatedGpus(ConfigTopology(config).world_size(), settings,
                            [&](Communicator& host, Communicator& devices, SimulatedDevice& gpu) {
                              return RunRank(config, plan, host,
                                             {.backend = gpu.backend.get(),
                                              .world = &devices,
                                              .compute = gpu.compute.get(),
                                              .bytes_per_second = bytes_per_second});
                            });
}

TEST_F(SimulatedCheckpointTest, ACopyDuringTrainingIsTheStateOfItsStep) {
  const TrainConfig at_once = Config("dp2_zero2", "at_once", /*async=*/false);
  ASSERT_OK(RunOnDevices(at_once, {.saves = {kSavedStep}, .last_step = kSavedStep}, {.seed = 1}));
  ASSERT_OK_AND_ASSIGN(const auto expected, ReadDigests(at_once.checkpoint().save()));
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    const TrainConfig config = Config("dp2_zero2", absl::StrCat("meanwhile", seed), /*async=*/true);
    // Slow copies: the last pieces are queued because the update wants them.
    ASSERT_OK(RunOnDevices(config, {.saves = {kSavedStep}}, {.seed = seed},
                           /*bytes_per_second=*/seed == 1 ? 1 : 0));
    ASSERT_OK_AND_ASSIGN(const auto saved, ReadDigests(config.checkpoint().save()));
    EXPECT_EQ(saved, expected);
  }
}

// A single rank waits for nothing but its copies. The first wait is theirs for the update; the
// others, of the next update for each of them, are missing.
TEST_F(SimulatedCheckpointTest, AMissingWaitIsFound) {
  const Plan plan = {.saves = {kSavedStep}};  // two more steps: the second waits for the first
  const TrainConfig right = Config("single", "right", /*async=*/true);
  ASSERT_OK(RunOnDevices(right, plan, {.seed = 0}));
  ASSERT_OK_AND_ASSIGN(const auto expected, ReadDigests(right.checkpoint().save()));
  int found = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const TrainConfig wrong = Config("single", absl::StrCat("wrong", seed), /*async=*/true);
    const absl::Status run = RunOnDevices(
        wrong, plan, {.seed = seed, .drops_wait = [](int64_t wait) { return wait > 0; }});
    const auto saved = ReadDigests(wrong.checkpoint().save());
    found += !run.ok() || !saved.ok() || *saved != expected;
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace tessera
