// A flag overrides a setting of the file that states the same under another name.

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "trainer/config/config.h"

namespace tessera {
namespace {

// Resolves a file with these settings, and flags.
absl::StatusOr<TrainConfig> ResolveWith(const std::string& text,
                                        const std::vector<std::string>& flags) {
  const TestFolder folder;
  const std::string file = folder.path() + "/settings.textproto";
  std::ofstream(file) << text;
  std::vector<std::string> arguments = {"train", "--config=" + file, "--train-iters=10",
                                        "--seq-length=16"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  TESSERA_ASSIGN_OR_RETURN(const CommandLine line,
                           ParseCommandLine(static_cast<int>(argv.size()), argv.data()));
  return ResolveConfig(line.config, {.origins = line.origins});
}

constexpr char kRun[] = "model { size: \"gpt2-tiny\" } data { train_data_path: \"t\" }\n";

// The settings that have several names, in one word.
std::string Described(const absl::StatusOr<TrainConfig>& config) {
  if (!config.ok()) return std::string(config.status().message());
  return absl::StrCat(ToString(ConfigTopology(*config)), " batch ",
                      config->training().global_batch_size(),
                      config->training().bf16() ? " bf16" : "",
                      config->checkpoint().no_save_optim() ? " no_save_optim" : "",
                      config->checkpoint().load_format());
}

struct Case {
  std::string file;
  std::vector<std::string> flags;
  std::string result;
};

const Case kCases[] = {
    {"training { bf16: true }", {"--dtype=float32"}, "single batch 1"},
    {"training { bf16: false }", {"--dtype=bfloat16"}, "single batch 1 bf16"},
    {"training { dtype: \"float32\" }", {"--bf16"}, "single batch 1 bf16"},
    {"training { dtype: \"bfloat16\" }", {"--bf16=false"}, "single batch 1"},
    {"training { global_batch_size: 8 }", {"--total-batch-size=64"}, "single batch 4"},
    {"training { total_batch_size: 64 }", {"--global-batch-size=8"}, "single batch 8"},
    {"checkpoint { save: \"s\" no_save_optim: false }",
     {"--save-optimizer-state=false"},
     "single batch 1 no_save_optim"},
    {"checkpoint { save: \"s\" save_optimizer_state: false }",
     {"--no-save-optim=false"},
     "single batch 1"},
    {"checkpoint { load: \"l\" load_format: \"torch\" }", {"--ckpt-type=hf"}, "single batch 1hf"},
    {"checkpoint { load: \"l\" ckpt_type: \"torch\" }", {"--load-format=hf"}, "single batch 1hf"},
    // Each name of the ZeRO stage over each other one.
    {"zero_stage: 2", {"--use-distributed-optimizer=false"}, "dp2"},
    {"zero_stage: 0", {"--use-distributed-optimizer"}, "dp2_zero1"},
    {"zero_stage: 2", {"--use-distributed-optimizer"}, "dp2_zero2"},
    {"zero_stage: 2", {"--data-parallel-sharding-strategy=no_shard"}, "dp2"},
    {"zero_stage: 1", {"--data-parallel-sharding-strategy=optim_grads"}, "dp2_zero2"},
    {"use_distributed_optimizer: true", {"--zero-stage=0"}, "dp2"},
    {"use_distributed_optimizer: false", {"--zero-stage=2"}, "dp2_zero2"},
    {"use_distributed_optimizer: true", {"--data-parallel-sharding-strategy=no_shard"}, "dp2"},
    {"use_distributed_optimizer: false", {"--data-parallel-sharding-strategy=optim"}, "dp2_zero1"},
    {"data_parallel_sharding_strategy: \"optim\"", {"--zero-stage=2"}, "dp2_zero2"},
    {"data_parallel_sharding_strategy: \"optim\"", {"--use-distributed-optimizer=false"}, "dp2"},
    {"data_parallel_sharding_strategy: \"no_shard\"", {"--use-distributed-optimizer"}, "dp2_zero1"},
    {"data_parallel_sharding_strategy: \"optim_grads\"",
     {"--use-distributed-optimizer"},
     "dp2_zero2"},
    {"use_distributed_optimizer: true", {"--topology=dp2"}, "dp2"},
    {"data_parallel_sharding_strategy: \"optim\"", {"--topology=dp2_zero2"}, "dp2_zero2"},
    {"topology: \"dp2_zero2\"", {"--use-distributed-optimizer=false"}, "dp2"},
    {"topology: \"dp2_zero2\"", {"--use-distributed-optimizer"}, "dp2_zero2"},
    {"topology: \"dp2_zero2\"", {"--data-parallel-sharding-strategy=optim"}, "dp2_zero1"},
    {"topology: \"dp2_zero2\"", {"--zero-stage=1"}, "dp2_zero1"},
    {"topology: \"dp2_zero2\"", {"--data-parallel-size=4"}, "dp4_zero2"},
    // In one place, the strategy decides, unless both cannot be.
    {"use_distributed_optimizer: true data_parallel_sharding_strategy: \"no_shard\"", {}, "dp2"},
    {"zero_stage: 1",
     {"--use-distributed-optimizer", "--data-parallel-sharding-strategy=no_shard"},
     "dp2"},
    {"use_distributed_optimizer: false data_parallel_sharding_strategy: \"optim\"",
     {"--zero-stage=2"},
     "dp2_zero2"},
};

TEST(OtherNamesTest, AFlagOverridesTheFile) {
  for (const Case& each : kCases) {
    const bool of_topology = each.result.starts_with("dp");
    const std::string file = !of_topology ? each.file
                             : each.file.starts_with("topology")
                                 ? "parallel { " + each.file + " }"
                                 : "parallel { data_parallel_size: 2 " + each.file + " }";
    std::string described = Described(ResolveWith(kRun + file, each.flags));
    if (of_topology) described = described.substr(0, described.find(" batch"));
    EXPECT_EQ(described, each.result) << each.file << " and " << each.flags.front();
  }
}

// A part of load_ckpt_info, or load_ckpt_folder, is another name of the setting.
TEST(OtherNamesTest, AFlagOverridesAPartOfTheFolderToLoad) {
  for (const std::string folder : {"load_ckpt_info", "load_ckpt_folder"}) {
    const std::string text = std::string(kRun) + "checkpoint { " + folder +
                             " { path: \"a\" content: \"model\" ckpt_type: \"hf\" } }";
    const auto resolved = [&](const std::string& flag) {
      const absl::StatusOr<TrainConfig> config = ResolveWith(text, {flag});
      if (!config.ok()) return std::string(config.status().message());
      const CheckpointConfig& checkpoint = config->checkpoint();
      return absl::StrCat(checkpoint.load(), " ", checkpoint.load_content(), " ",
                          checkpoint.load_format());
    };
    EXPECT_EQ(resolved("--seed=1"), "a model hf");
    EXPECT_EQ(resolved("--load=b"), "b model hf");
    EXPECT_EQ(resolved("--load-ckpt-folder=b"), "b model hf");
    EXPECT_EQ(resolved("--load-content=all"), "a all hf");
    EXPECT_EQ(resolved("--ckpt-type=llama"), "a model llama");
    EXPECT_EQ(resolved("--load-format=torch"), "a model torch");
    EXPECT_EQ(resolved("--load="), " all ");
  }
}

// A run writes its complete settings, so that one name of each pair is always given.
TEST(OtherNamesTest, AFlagOverridesTheSettingsOfTheRunItself) {
  ASSERT_OK_AND_ASSIGN(const TrainConfig run,
                       ResolveWith(std::string(kRun) + "parallel { data_parallel_size: 2 }",
                                   {"--dtype=bfloat16", "--total-batch-size=32"}));
  const std::string own = ConfigText(run);
  EXPECT_EQ(Described(ResolveWith(own, {})), "dp2 batch 2 bf16");
  EXPECT_EQ(Described(ResolveWith(own, {"--dtype=bfloat16", "--total-batch-size=32"})),
            "dp2 batch 2 bf16");
  EXPECT_EQ(Described(ResolveWith(
                own, {"--dtype=float32", "--total-batch-size=128", "--use-distributed-optimizer"})),
            "dp2_zero1 batch 8");
  EXPECT_EQ(Described(ResolveWith(own, {"--data-parallel-sharding-strategy=optim_grads"})),
            "dp2_zero2 batch 2 bf16");
  EXPECT_EQ(Described(ResolveWith(
                own, {"--topology=single", "--save-optimizer-state=false", "--save=s"})),
            "single batch 2 bf16 no_save_optim");
}

TEST(OtherNamesTest, WhatIsGivenInOnePlaceMustAgree) {
  EXPECT_EQ(Described(ResolveWith(kRun, {"--dtype=float32", "--bf16"})),
            "dtype=float32 and bf16=true exclude each other (--bf16=true, --dtype=float32)");
  const std::string told = Described(ResolveWith(
      std::string(kRun) + "parallel { use_distributed_optimizer: false zero_stage: 1 }", {}));
  EXPECT_TRUE(told.starts_with("use_distributed_optimizer=false and zero_stage=1 exclude each"))
      << told;
  // The stage of the file settles nothing between two flags.
  EXPECT_EQ(Described(ResolveWith(
                std::string(kRun) + "parallel { zero_stage: 2 }",
                {"--use-distributed-optimizer=false", "--data-parallel-sharding-strategy=optim"})),
            "use_distributed_optimizer=false and data_parallel_sharding_strategy=optim exclude "
            "each other (--data-parallel-sharding-strategy=optim, "
            "--use-distributed-optimizer=false)");
}

}  // namespace
}  // namespace tessera
