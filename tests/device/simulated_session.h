#ifndef TESSERA_TESTS_DEVICE_SIMULATED_SESSION_H_
#define TESSERA_TESTS_DEVICE_SIMULATED_SESSION_H_

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/testing.h"
#include "checkpoint/include/manifest.h"
#include "compute/device/testing/simulated_devices.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/session_run.h"
#include "tests/support/training.h"
#include "trainer/app/session.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_state.h"

namespace tessera::testing {

inline constexpr int64_t kSavedStep = 2;
inline constexpr int64_t kLastStep = 3;
// Sums of few terms in another order than the CPU's, over few steps.
inline constexpr double kTolerance = 2e-5;

inline constexpr char kSessionModel[] =
    "size: \"gpt2-tiny\" num_layers: 2 hidden_size: 16 ffn_hidden_size: 64 num_attention_heads: 2 "
    "vocab_size: 48 hidden_dropout: 0.1";

using Losses = std::map<int64_t, double>;

// Returns what a checkpoint of the session says beside its tensors.
inline ckpt::Manifest Described(const Session& session) {
  return DescribeRun(session.config, session.config.model(), session.progress,
                     session.data_identity(), session.numerics());
}

// Runs of the trainer on simulated GPUs and on the processors, in one folder.
class SimulatedSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(WriteTokens(root_ / "tokens.bin", /*vocabulary=*/48, /*count=*/1000));
  }

  // The config of the run `name`, which saves in its folder after kSavedStep and kLastStep steps.
  TrainConfig Config(const std::string& name, const std::string& topology, bool on_gpus,
                     bool exact = false) const {
    TrainConfig config = OrFail(MakeConfig({.model = kSessionModel,
                                            .tokens = root_ / "tokens.bin",
                                            .topology = topology,
                                            .exact_shards = exact ? 2 : 0,
                                            .micro_batch_size = 1,
                                            .global_batch_size = 4,
                                            .seq_length = 8,
                                            .steps = kLastStep,
                                            .bucket_elements = 1000}));
    if (on_gpus) config.mutable_training()->set_device(ComputeDevice::CUDA);
    config.mutable_data()->set_valid_data_path(root_ / "tokens.bin");
    config.mutable_training()->set_eval_interval(kLastStep);
    config.mutable_training()->set_eval_iters(1);
    config.mutable_output()->set_run_dir(root_ / name);
    config.mutable_checkpoint()->set_save(Checkpoints(name));
    config.mutable_checkpoint()->set_save_interval(kSavedStep);
    config.mutable_checkpoint()->set_async_save(true);
    return config;
  }
  // A run of two GPUs, each on a machine of its own, whose store has nothing before the last step.
  TrainConfig Replicating(const std::string& name, bool async_save) const {
    TrainConfig config = Config(name, "dp2_zero2", /*on_gpus=*/true);
    CheckpointConfig& checkpoint = *config.mutable_checkpoint();
    checkpoint.set_save_interval(1000);
    checkpoint.set_async_save(async_save);
    checkpoint.set_replicate_to_peers(true);
    checkpoint.set_replicate_interval(1);
    checkpoint.set_replicate_ranks_per_node(1);
    checkpoint.set_replicate_folder(root_ / (name + "_memory"));
    return config;
  }
  // The same as Config(), beginning with the checkpoint of a step of another run.
  TrainConfig After(const std::string& other, int64_t step, TrainConfig config) const {
    config.mutable_checkpoint()->set_load(Checkpoints(other));
    config.mutable_checkpoint()->set_ckpt_step(step);
    return config;
  }
  std::filesystem::path Checkpoints(const std::string& name) const {
    return root_ / name / "checkpoints";
  }

  absl::StatusOr<std::string> Run(const TrainConfig& config, ComputeDevices& devices,
                                  const SessionBody& body) {
    return RunSessions(config, devices, body);
  }
  absl::StatusOr<std::string> Run(const TrainConfig& config, const SessionBody& body,
                                  uint64_t seed = 0) {
    SimulatedDevices devices({.count = ConfigTopology(config).world_size(), .seed = seed});
    return Run(config, devices, body);
  }

  Losses LossesOf(const std::string& name) const {
    Losses losses;
    std::ifstream file(root_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      const bool is_step = record["kind"] == "step";
      const std::string bits = record[is_step ? "loss_bits" : "eval_loss_bits"];
      // The evaluation after the last step stands at 0.
      losses[is_step ? record["step"].get<int64_t>() : 0] =
          std::bit_cast<double>(static_cast<uint64_t>(std::strtoull(bits.c_str(), nullptr, 16)));
    }
    return losses;
  }

  std::vector<std::string> LedgerOf(const std::string& name) const {
    std::vector<std::string> ledger;
    std::ifstream file(root_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record["kind"] == "step") ledger.push_back(record["ledger"].get<std::string>());
    }
    return ledger;
  }

  Digests DigestsOf(const std::string& name, int64_t step) const {
    return OrFail(ReadDigests(Checkpoints(name), step));
  }

  const TestFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

inline void ExpectNear(const Losses& a, const Losses& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [step, loss] : a) EXPECT_NEAR(loss, b.at(step), kTolerance) << step;
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_SIMULATED_SESSION_H_
