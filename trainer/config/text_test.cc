#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/testing.h"
#include "trainer/config/config.h"
#include "trainer/config/flags.h"

namespace tessera {
namespace {

TEST(ParseConfigTest, Groups) {
  ASSERT_OK_AND_ASSIGN(
      const TrainConfig config,
      ParseConfig("# a comment\nmodel { size: \"gpt2-tiny\" num_layers: 3 }\n"
                  "optimizer { lr: 1e-3 lr_decay_style: WSD }\ntraining { bf16: true }\n",
                  "x.textproto"));
  EXPECT_EQ(config.model().num_layers(), 3);
  EXPECT_EQ(config.optimizer().lr(), 1e-3);
  EXPECT_EQ(config.optimizer().lr_decay_style(), LrDecayStyle::WSD);
  EXPECT_TRUE(config.training().bf16());
}

TEST(ParseConfigTest, ErrorsHaveFileLineAndColumn) {
  const auto error = [](std::string_view text) {
    return std::string(ParseConfig(text, "dir/x.textproto").status().message());
  };
  EXPECT_EQ(error("training {\n  micro_batch: 3\n}"),
            "dir/x.textproto:2:14: Message type \"tessera.TrainingConfig\" has no field named "
            "\"micro_batch\".");
  EXPECT_EQ(error("training {\n  train_iters: ten }").substr(0, 21), "dir/x.textproto:2:16:");
  EXPECT_EQ(error("optimizer { lr_decay_style: SOME }").substr(0, 21), "dir/x.textproto:1:34:");
  EXPECT_EQ(error("training { seed: 1 seed: 2 }").substr(0, 16), "dir/x.textproto:");
  EXPECT_EQ(error("training {").substr(0, 16), "dir/x.textproto:");
}

TEST(LoadConfigTest, AMissingFileIsNamed) {
  const absl::Status status = LoadConfig("/no/such/x.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "the config file: cannot open /no/such/x.textproto: No such file or directory");
  EXPECT_EQ(LoadConfig("/tmp").status().message(),
            "the config file: cannot open /tmp: not a regular file");
}

TEST(LoadConfigTest, AnEmptyFileSaysNothing) {
  const std::string path = testing::TempDir() + "/empty.textproto";
  std::ofstream(path) << "";
  ASSERT_OK_AND_ASSIGN(const TrainConfig config, LoadConfig(path));
  EXPECT_EQ(config.ByteSizeLong(), 0u);
}

TEST(LoadConfigTest, AFileWithoutEndIsNoConfig) {
  EXPECT_EQ(LoadConfig("/dev/zero").status().message(),
            "the config file: cannot open /dev/zero: not a regular file");
  const TestFolder folder;
  const std::string path = folder.Write("x", std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(LoadConfig(path).status().message(),
            "the config file: " + path + " has 1048577 bytes, expected at most 1048576");
}

// The settings of InternEvo's CheckpointManager, under its names.
TEST(ParseConfigTest, InternEvosNamesAreOthersOfTheSameSettings) {
  const auto config = ParseConfig(R"(
      # checkpoint_every: 1
      checkpoint {
        enable_save_ckpt: true
        save_ckpt_folder: "runs/checkpoint_every: 2"
        checkpoint_every: 50
        load_ckpt_folder : "base"
        load_content: "all"
        async_upload: true
        async_upload_tmp_folder: '/tmp/it\'s'
        oss_snapshot_freq:10
        auto_resume: false
        stop_file_path: "stop"
        keep_latest_k: 3
      }
      training { train_iters: 0 })",
                                  "run.textproto");
  ASSERT_OK(config);
  const auto expected = ParseConfig(R"(
      checkpoint {
        enable_save_ckpt: true
        save: "runs/checkpoint_every: 2"
        save_interval: 50
        load: "base"
        load_content: "all"
        async_upload: true
        async_upload_tmp_folder: "/tmp/it's"
        non_persistent_save_interval: 10
        auto_resume: false
        stop_file_path: "stop"
        max_checkpoint_keep: 3
      }
      training { train_iters: 0 })",
                                    "run.textproto");
  ASSERT_OK(expected);
  EXPECT_EQ(config->SerializeAsString(), expected->SerializeAsString());
  // Flags go over the file, under either name.
  TrainConfig changed = *config;
  const std::vector<std::string> flags = {"--checkpoint-every=7", "--load-ckpt-folder=other"};
  ASSERT_OK(ApplyFlags(flags, &changed));
  EXPECT_EQ(changed.checkpoint().save_interval(), 7);
  EXPECT_EQ(changed.checkpoint().load(), "other");
}

TEST(ParseConfigTest, TwoNamesOfOneSettingAreRefused) {
  const auto error = [](const std::string& checkpoint) {
    const auto config = ParseConfig("checkpoint {\n" + checkpoint + "\n}", "run.textproto");
    return std::string(config.ok() ? ResolveConfig(*config).status().message()
                                   : config.status().message());
  };
  EXPECT_EQ(error("checkpoint_every: 5 save_interval: 6"),
            "run.textproto: checkpoint_every and save_interval are two names of one setting: give "
            "one");
  EXPECT_EQ(error("save: \"a\" save_ckpt_folder: \"a\""),
            "run.textproto: save and save_ckpt_folder are two names of one setting: give one");
  EXPECT_EQ(error("load_ckpt_folder: \"a\" load: \"a\""),
            "run.textproto: load_ckpt_folder and load are two names of one setting: give one");
  EXPECT_EQ(error("load_ckpt_folder { path: \"a\" } load_ckpt_info { path: \"a\" }"),
            "load_ckpt_folder and load_ckpt_info are two names of one setting: give one");
  EXPECT_EQ(error("load: \"b\" load_ckpt_info { path: \"a\" }"),
            "load=b and load_ckpt_info.path=a exclude each other");
  EXPECT_EQ(error("load_content: \"all\" load_ckpt_info { path: \"a\" content: \"model\" }"),
            "load_content=all and load_ckpt_info.content=model exclude each other");
  EXPECT_EQ(error("ckpt_type: \"hf\" load_ckpt_info { path: \"a\" ckpt_type: \"llama\" }"),
            "ckpt_type=hf and load_ckpt_info.ckpt_type=llama exclude each other");
  EXPECT_EQ(error("load_format: \"hf\" load_ckpt_info { path: \"a\" ckpt_type: \"llama\" }"),
            "load_format=hf and ckpt_type=llama exclude each other");
  // Lines are counted as they are in the file.
  EXPECT_THAT(error("save_ckpt_folder: 5"), ::testing::HasSubstr("run.textproto:2:"));
}

}  // namespace
}  // namespace tessera
