// Every shipped config parses, is consistent and describes the model in its name.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "base/testing.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "google/protobuf/util/message_differencer.h"
#include "layout/dtype.h"
#include "layout/topology.h"
#include "models/layers/model.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

struct Description {
  int64_t weights = 0;
  std::string topology;
};

// By file.
const std::map<std::string, Description>& Expected() {
  static const auto* const expected = new std::map<std::string, Description>{
      {"demo.textproto", {2197632, "single"}},
      {"gpt2_124m.textproto", {124439808, "single"}},
      {"gpt2_124m_gpu.textproto", {124439808, "single"}},
      {"gpt2_1558m_dp8_zero2.textproto", {1557611200, "dp8_zero2"}},
      {"gpt2_1558m_gpu.textproto", {1557611200, "single"}},
      {"gpt2_tiny.textproto", {120640, "single"}},
      {"llama3_1b.textproto", {1235814400, "single"}},
      {"llama3_1b_gpu.textproto", {1235814400, "single"}},
      {"llama3_8b_64gpu.textproto", {8030261248, "dp8_zero2_tp4_pp2_sp"}},
      {"llama3_tiny.textproto", {115072, "single"}},
  };
  return *expected;
}

// Named after their topology: one model and one set of batches, so that their losses can be
// compared.
constexpr const char* kTopologies[] = {"single", "dp2",         "dp4_zero2", "tp2",
                                       "pp2",    "dp2_tp2_pp2", "pp2_vpp2",  "dp4_zero2_tp2_pp2"};

// The config after the launcher has completed it.
absl::StatusOr<TrainConfig> Resolved(const std::string& name) {
  TESSERA_ASSIGN_OR_RETURN(TrainConfig config, LoadConfig("trainer/configs/" + name));
  if (!config.data().has_train_data_path()) config.mutable_data()->set_train_data_path("bytes");
  if (!config.data().has_valid_data_path()) config.mutable_data()->set_valid_data_path("bytes");
  return ResolveConfig(config);
}

TEST(ConfigsTest, EachResolvesToTheModelOfItsName) {
  for (const auto& [name, description] : Expected()) {
    const absl::StatusOr<TrainConfig> config = Resolved(name);
    ASSERT_OK(config) << name;
    EXPECT_EQ(ParameterCount(config->model()), description.weights) << name;
    EXPECT_EQ(ToString(ConfigTopology(*config)), description.topology) << name;
  }
}

TEST(ConfigsTest, TopologiesAreTheirNamesAndAllElseIsTheSame) {
  ASSERT_OK_AND_ASSIGN(TrainConfig single, Resolved("single.textproto"));
  for (const std::string name : kTopologies) {
    absl::StatusOr<TrainConfig> config = Resolved(name + ".textproto");
    ASSERT_OK(config) << name;
    EXPECT_EQ(ToString(ConfigTopology(*config)), name);
    EXPECT_EQ(config->output().run_dir(), "runs/" + name);
    EXPECT_EQ(config->checkpoint().save(), "runs/" + name + "/checkpoints");
    config->mutable_output()->set_run_dir(single.output().run_dir());
    config->mutable_checkpoint()->set_save(single.checkpoint().save());
    *config->mutable_parallel() = single.parallel();
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*config, single)) << name;
  }
}

TEST(ConfigsTest, EveryTopologyCanBeExact) {
  for (const std::string name : kTopologies) {
    absl::StatusOr<TrainConfig> config = Resolved(name + ".textproto");
    ASSERT_OK(config) << name;
    config->mutable_parallel()->set_numerics(Numerics::EXACT);
    config->mutable_parallel()->set_exact_tp_shards(2);
    EXPECT_OK(ResolveConfig(*config).status()) << name;
  }
}

TEST(ConfigsTest, ThoseNamedAfterGpusUseThem) {
  for (const auto& [name, description] : Expected()) {
    const absl::StatusOr<TrainConfig> config = Resolved(name);
    ASSERT_OK(config) << name;
    const bool on_gpus = name.find("gpu.") != std::string::npos;
    EXPECT_EQ(config->training().device() == ComputeDevice::CUDA, on_gpus) << name;
    EXPECT_TRUE(!on_gpus || config->training().bf16()) << name;
    EXPECT_TRUE(!on_gpus || config->checkpoint().async_save()) << name;
  }
}

// The run is the one of the config for the CPU: only how it is computed differs.
TEST(ConfigsTest, OnAGpuTheRunIsTheSame) {
  for (const auto& [gpu, cpu] : std::map<std::string, std::string>{
           {"gpt2_124m_gpu", "gpt2_124m"}, {"llama3_1b_gpu", "llama3_1b"}}) {
    absl::StatusOr<TrainConfig> wanted = Resolved(cpu + ".textproto");
    absl::StatusOr<TrainConfig> config = Resolved(gpu + ".textproto");
    ASSERT_TRUE(wanted.ok() && config.ok()) << wanted.status() << config.status();
    for (TrainConfig* one : {&*wanted, &*config}) {
      one->clear_output();
      one->clear_checkpoint();
      one->mutable_training()->clear_device();
      one->mutable_training()->clear_micro_batch_size();
      one->mutable_training()->clear_recompute_activations();
    }
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*config, *wanted)) << gpu;
  }
}

// Activations grow no faster than the tokens: one sequence of 32768 fits a GPU of 80 GB, beside
// 22 GB of weights, gradients and optimizer state; longer ones do if activations are recomputed.
TEST(ConfigsTest, LongContextsOfLlama3FitOneGpu) {
  ASSERT_OK_AND_ASSIGN(const TrainConfig config, Resolved("llama3_1b_gpu.textproto"));
  const std::unique_ptr<Backend> backend = MakeCpuBackend(1);
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Model> model,
      MakeModel(config.model(), {.compute_dtype = DType::kBF16, .with_gradients = false},
                *backend));
  const auto bytes = [&](int64_t tokens, ActivationUse use) {
    return model->NewActivations(1, tokens, use)->bytes();
  };
  for (const ActivationUse use : {ActivationUse::kTraining, ActivationUse::kTrainingRecompute}) {
    EXPECT_LE(bytes(32768, use), 4 * bytes(8192, use));
  }
  EXPECT_LE(bytes(32768, ActivationUse::kTraining), int64_t{40'000'000'000});
  EXPECT_LE(bytes(32768, ActivationUse::kTrainingRecompute), int64_t{7'000'000'000});
}

TEST(ConfigsTest, NoneIsForgotten) {
  for (const auto& entry : std::filesystem::directory_iterator("trainer/configs")) {
    if (entry.path().extension() != ".textproto") continue;
    const bool is_topology =
        std::ranges::find(kTopologies, entry.path().stem().string()) != std::end(kTopologies);
    EXPECT_TRUE(is_topology || Expected().contains(entry.path().filename())) << entry.path();
  }
}

}  // namespace
}  // namespace tessera
