#include "trainer/state/saved_settings.h"

#include <utility>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/config/config.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kConfig[] = R"pb(
  model { size: "gpt2-tiny" vocab_size: 100 }
  training { micro_batch_size: 2 global_batch_size: 8 seq_length: 32 train_iters: 100 }
  optimizer { lr: 1e-3 lr_decay_style: LINEAR }
  data { train_data_path: "tokens.bin" }
)pb";

TrainConfig Config(const std::string& more) {
  TrainConfig config = *ParseConfig(kConfig, "test");
  config.MergeFrom(OrFail(ParseConfig(more, "test")));
  return OrFail(ResolveConfig(config));
}

ckpt::Manifest Saved(const TrainConfig& config) {
  return DescribeRun(config, config.model(), {.step = 50, .seed = 1234}, {}, {});
}

// "name: saved -> now"
std::vector<std::string> Changes(const ckpt::Manifest& saved, const TrainConfig& config) {
  std::vector<std::string> lines;
  for (const ChangedSetting& change :
       ChangedSettings(saved, config, static_cast<uint64_t>(config.training().seed()))) {
    lines.push_back(change.name + ": " + change.saved + " -> " + change.now);
  }
  return lines;
}

TEST(SavedSettingsTest, TheSameSettingsAreNoChange) {
  const TrainConfig config = Config("");
  EXPECT_THAT(Changes(Saved(config), config), IsEmpty());
  EXPECT_EQ(DescribeChangedSettings(Saved(config), config, 1234, 50), "");
}

TEST(SavedSettingsTest, EverySettingThatResultsDependOnIsCompared) {
  const ckpt::Manifest saved = Saved(Config(""));
  const auto expect = [&](const std::string& more, const std::string& line) {
    EXPECT_THAT(Changes(saved, Config(more)), ElementsAre(line)) << more;
  };
  expect("optimizer { lr: 2e-3 }", "lr: 0.001 -> 0.002");
  expect("optimizer { min_lr: 1e-4 }", "min_lr: 0 -> 1e-4");
  expect("optimizer { lr_decay_style: COSINE }", "lr_decay_style: linear -> cosine");
  expect("optimizer { lr_decay_iters: 90 }", "lr_decay_iters: 100 -> 90");
  expect("optimizer { lr_warmup_iters: 5 }", "lr_warmup_iters: 0 -> 5");
  expect("optimizer { weight_decay: 0.1 }", "weight_decay: 0.01 -> 0.1");
  expect("optimizer { clip_grad: 0 }", "clip_grad: 1 -> 0");
  expect("optimizer { adam_beta1: 0.8 }", "adam_beta1: 0.9 -> 0.8");
  expect("optimizer { adam_beta2: 0.95 }", "adam_beta2: 0.999 -> 0.95");
  expect("optimizer { adam_eps: 1e-6 }", "adam_eps: 1e-8 -> 1e-6");
  expect("training { micro_batch_size: 4 }", "micro_batch_size: 2 -> 4");
  expect("training { global_batch_size: 16 }", "global_batch_size: 8 -> 16");
  expect("training { seq_length: 16 }", "seq_length: 32 -> 16");
  expect("training { seed: 5 }", "seed: 1234 -> 5");
  expect("training { bf16: true }", "bf16: false -> true");
  expect("model { hidden_dropout: 0.1 }", "hidden_dropout: 0 -> 0.1");
  expect("model { attention_dropout: 0.1 }", "attention_dropout: 0 -> 0.1");
  expect("model { make_vocab_size_divisible_by: 64 }", "make_vocab_size_divisible_by: 128 -> 64");
  expect("training { threads: 2 }", "threads: 0 -> 2");
  expect("training { eval_iters: 5 }", "eval_iters: 100 -> 5");
  expect("parallel { numerics: EXACT }", "numerics: fast -> exact");
  expect("parallel { ddp_bucket_size: 7 }", "ddp_bucket_size: 10000000 -> 7");
  // A schedule that follows from the length of the run.
  expect("training { train_iters: 200 }", "lr_decay_iters: 100 -> 200");
}

TEST(SavedSettingsTest, IncidentalSettingsAreNot) {
  const ckpt::Manifest saved = Saved(Config("optimizer { lr_decay_iters: 100 }"));
  for (const std::string more :
       {"training { train_iters: 200 }", "training { exit_interval: 7 }",
        "training { recompute_activations: true }", "output { run_dir: \"x\" log_interval: 9 }",
        "checkpoint { save: \"y\" save_interval: 3 }", "data { train_data_path: \"z\" }",
        "parallel { data_parallel_size: 2 zero_stage: 1 }",
        "training { eval_interval: 5 } data { valid_data_path: \"z\" }"}) {
    EXPECT_THAT(Changes(saved, Config("optimizer { lr_decay_iters: 100 } " + more)), IsEmpty())
        << more;
  }
}

TEST(SavedSettingsTest, TheTableSaysWhatBecomesOfTheLearningRate) {
  const ckpt::Manifest saved = Saved(Config(""));
  const TrainConfig config = Config("training { train_iters: 200 } optimizer { clip_grad: 0.5 }");
  EXPECT_EQ(DescribeChangedSettings(saved, config, 1234, 50),
            "these settings differ from the saved run's:\n"
            "                  saved  now\n"
            "  lr_decay_iters  100    200\n"
            "  clip_grad       1      0.5\n"
            "the next learning rate is 0.00075; with the saved run's schedule it would be 0.0005 "
            "(--use-checkpoint-opt-param-scheduler)");
  EXPECT_THAT(DescribeChangedSettings(saved, Config("optimizer { clip_grad: 0.5 }"), 1234, 50),
              Not(HasSubstr("learning rate")));
}

TEST(SavedSettingsTest, TheTableNamesAFlagOnlyToARunThatMayHaveIt) {
  const auto table = [](const std::string& checkpoint) {
    return DescribeChangedSettings(
        Saved(Config("")),
        Config("optimizer { lr: 2e-3 } checkpoint { load: \"x\" " + checkpoint + " }"), 1234, 0);
  };
  constexpr char kFlag[] = "--use-checkpoint-opt-param-scheduler";
  EXPECT_THAT(table(""), HasSubstr(kFlag));
  EXPECT_THAT(table("override_opt_param_scheduler: true"),
              AllOf(HasSubstr("with the saved run's schedule"), Not(HasSubstr(kFlag))));
  for (const std::string alone : {"finetune: true", "load_content: \"model,sampler\""}) {
    EXPECT_THAT(table(alone), AllOf(HasSubstr("\n  lr "), Not(HasSubstr("learning rate"))))
        << alone;
  }
}

TEST(SavedSettingsTest, TheTableSaysWhetherTheBitsChange) {
  const auto table = [](const std::string& saved, const std::string& now) {
    return DescribeChangedSettings(Saved(Config(saved)), Config(now), 1234, 50);
  };
  constexpr char kBits[] = "the bits of later losses differ from the saved run's";
  const std::string exact = "parallel { numerics: EXACT ";
  EXPECT_EQ(table(exact + "exact_tp_shards: 2 }", exact + "}"),
            "these settings differ from the saved run's:\n"
            "                   saved  now\n"
            "  exact_tp_shards  2      1\n" +
                std::string(kBits));
  EXPECT_THAT(table("", "training { threads: 2 }"), HasSubstr(kBits));
  // In EXACT numerics, this changes none.
  EXPECT_THAT(table(exact + "}", exact + "} training { threads: 2 }"),
              AllOf(HasSubstr("threads"), Not(HasSubstr(kBits))));
  EXPECT_THAT(table("", "optimizer { clip_grad: 0.5 }"), Not(HasSubstr(kBits)));
}

// Older versions recorded the numerics as a text, and no other setting of the group.
TEST(SavedSettingsTest, TheNumericsOfOlderCheckpointsAreCompared) {
  const auto of_version_1 = [](const std::string& more) {
    ckpt::Manifest saved = Saved(Config(more));
    saved.mutable_trainer()->mutable_extra()->erase("bit_settings");
    return saved;
  };
  const TrainConfig config = Config("parallel { numerics: EXACT ddp_bucket_size: 7 }");
  EXPECT_THAT(Changes(of_version_1("parallel { numerics: EXACT exact_tp_shards: 4 }"), config),
              ElementsAre("exact_tp_shards: 4 -> 1"));
  EXPECT_THAT(Changes(of_version_1(""), config), ElementsAre("numerics: fast -> exact"));
}

TEST(SavedSettingsTest, ASeedThatIsKeptIsNoChange) {
  const ckpt::Manifest saved = Saved(Config(""));
  EXPECT_THAT(ChangedSettings(saved, Config("training { seed: 5 }"), 1234), IsEmpty());
}

TEST(SavedSettingsTest, OlderAndForeignCheckpointsAreNotCompared) {
  const TrainConfig config = Config("optimizer { lr: 2e-3 }");
  ckpt::Manifest manifest = Saved(Config(""));
  manifest.mutable_trainer()->clear_extra();
  EXPECT_THAT(Changes(manifest, config), IsEmpty());
  EXPECT_EQ(DescribeChangedSettings(manifest, config, 1234, 50), "");
  (*manifest.mutable_trainer()->mutable_extra())["settings"] = "{\"lr\": 7}";
  EXPECT_THAT(Changes(manifest, config), IsEmpty());
  // A later version's settings are skipped, and those that it lacks are not compared.
  (*manifest.mutable_trainer()->mutable_extra())["settings"] =
      "optimizer { lr: 0.001 of_a_later_version: 5 } of_a_later_version { x: 1 }";
  EXPECT_THAT(Changes(manifest, config), ElementsAre("lr: 0.001 -> 0.002"));
}

TEST(SavedSettingsTest, TheSavedScheduleReplacesTheRuns) {
  const ckpt::Manifest saved = Saved(Config("optimizer { lr_warmup_iters: 10 min_lr: 1e-5 }"));
  TrainConfig config = Config(
      "training { train_iters: 200 } optimizer { lr: 5e-3 weight_decay: 0.1 clip_grad: 0.5 }");
  ASSERT_OK(TakeSavedSchedule(saved, &config));
  EXPECT_EQ(config.optimizer().lr(), 1e-3);
  EXPECT_EQ(config.optimizer().min_lr(), 1e-5);
  EXPECT_EQ(config.optimizer().lr_warmup_iters(), 10);
  EXPECT_EQ(config.optimizer().lr_decay_iters(), 100);
  EXPECT_EQ(config.optimizer().weight_decay(), 0.01);
  EXPECT_EQ(config.optimizer().clip_grad(), 0.5);
  EXPECT_EQ(config.training().train_iters(), 200);
}

// An older version has accepted and saved them.
TEST(SavedSettingsTest, ASavedScheduleMayHaveSettingsWithoutAnEffect) {
  ckpt::Manifest saved = Saved(Config("optimizer { lr: 2e-3 lr_decay_style: CONSTANT }"));
  std::string& settings = (*saved.mutable_trainer()->mutable_extra())["settings"];
  for (const auto& [now, then] : {std::pair("min_lr: 0", "min_lr: 1e-5"),
                                  {"lr_wsd_decay_iters: 0", "lr_wsd_decay_iters: 9"}}) {
    ASSERT_NE(settings.find(now), settings.npos) << settings;
    settings.replace(settings.find(now), std::string(now).size(), then);
  }
  TrainConfig config = Config("");
  ASSERT_OK(TakeSavedSchedule(saved, &config));
  EXPECT_EQ(config.optimizer().lr(), 2e-3);
  EXPECT_EQ(config.optimizer().lr_decay_style(), LrDecayStyle::CONSTANT);
}

// A resolved save_interval=0 has save_last_step=false, which is for folders with checkpoints.
TEST(SavedSettingsTest, ARunThatSavesNothingCanHaveTheSavedSchedule) {
  const ckpt::Manifest saved = Saved(Config("optimizer { lr: 2e-3 }"));
  TrainConfig config = Config("checkpoint { load: \"x\" save_interval: 0 }");
  EXPECT_THAT(DescribeChangedSettings(saved, config, 1234, 50),
              HasSubstr("the next learning rate is 0.0005; with the saved run's schedule"));
  const std::string checkpoint = config.checkpoint().DebugString();
  ASSERT_OK(TakeSavedSchedule(saved, &config));
  EXPECT_EQ(config.optimizer().lr(), 2e-3);
  EXPECT_EQ(config.checkpoint().DebugString(), checkpoint);
}

TEST(SavedSettingsTest, AScheduleThatIsMissingOrImpossibleIsRefused) {
  TrainConfig config = Config("");
  ckpt::Manifest manifest = Saved(config);
  (*manifest.mutable_trainer()->mutable_extra())["settings"] =
      "optimizer { lr: 0.001 lr_decay_iters: 0 }";
  EXPECT_TRUE(absl::IsDataLoss(TakeSavedSchedule(manifest, &config)));
  manifest.mutable_trainer()->clear_extra();
  EXPECT_TRUE(absl::IsFailedPrecondition(TakeSavedSchedule(manifest, &config)));
  EXPECT_EQ(config.optimizer().lr_decay_iters(), 100);
}

}  // namespace
}  // namespace tessera
