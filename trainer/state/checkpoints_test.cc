#include "trainer/state/checkpoints.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  // A step whose manifest is there, and damaged.
  void WriteStep(const std::string& name) {
    fs::create_directories(folder_ + "/" + name);
    std::ofstream(folder_ + "/" + name + "/manifest.pb") << "no manifest";
  }

  std::string folder_;
  ckpt::SingleProcessGroup alone_;
  const RankGroup group_{.ranks = alone_};
};

TEST_F(CheckpointsTest, AnEmptyFolderIsAFreshStartUnlessWeightsAreAskedFor) {
  CheckpointConfig config;
  for (const std::string& folder : {folder_, folder_ + "/none"}) {
    config.set_load(folder);
    const auto fresh = FindSavedRun(config, group_);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    EXPECT_FALSE(fresh->has_value());
    CheckpointConfig finetune = config;
    finetune.set_finetune(true);
    EXPECT_TRUE(absl::IsNotFound(FindSavedRun(finetune, group_).status()));
    CheckpointConfig step = config;
    step.set_ckpt_step(3);
    EXPECT_TRUE(absl::IsNotFound(FindSavedRun(step, group_).status()));
  }
}

TEST_F(CheckpointsTest, ACheckpointIsNotTakenForAFolderWithoutAny) {
  WriteStep("step-00000002");
  CheckpointConfig config;
  config.set_load(folder_ + "/step-00000002");
  config.set_save(folder_ + "/step-00000002");
  const absl::Status load = FindSavedRun(config, group_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(load)) << load;
  EXPECT_THAT(std::string(load.message()),
              HasSubstr("load=" + config.load() + " is a single checkpoint: expected the folder"));
  const absl::Status save = ReserveSaveFolder(config, 0, group_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(save)) << save;
  EXPECT_THAT(std::string(save.message()), HasSubstr("save=" + config.save()));
}

TEST_F(CheckpointsTest, TwoRunsNeverSaveToOneFolder) {
  CheckpointConfig config;
  config.set_save(folder_ + "/new");
  const auto first = ReserveSaveFolder(config, 0, group_);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = ReserveSaveFolder(config, 0, group_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
}

TEST_F(CheckpointsTest, SavesThatWereNeverCompletedAreSaid) {
  CheckpointConfig config;
  config.set_load(folder_);
  const auto said = [&](int64_t step) {
    const absl::StatusOr<std::string> sentence = DescribeUnfinishedSaves(config, step);
    EXPECT_TRUE(sentence.ok()) << sentence.status();
    return sentence.value_or("");
  };
  WriteStep("step-00000004");
  EXPECT_EQ(said(-1), "");
  fs::create_directories(folder_ + "/step-00000002");
  fs::create_directories(folder_ + "/step-00000006");
  fs::create_directories(folder_ + "/something-else");
  EXPECT_EQ(said(4), "passed over in " + folder_ +
                         ": step-00000006, a save that was never completed (no manifest.pb)");
  EXPECT_THAT(said(-1), HasSubstr("step-00000002, step-00000006, saves that were never"));
  EXPECT_EQ(said(6), "");
  config.set_load(folder_ + "/none");
  EXPECT_EQ(said(-1), "");
}

TEST_F(CheckpointsTest, ADamagedManifestNamesTheStepBefore) {
  WriteStep("step-00000002");
  WriteStep("step-00000004");
  CheckpointConfig config;
  config.set_load(folder_);
  const absl::Status newest = FindSavedRun(config, group_).status();
  EXPECT_TRUE(absl::IsDataLoss(newest)) << newest;
  EXPECT_THAT(std::string(newest.message()), HasSubstr("--ckpt-step=2"));
  config.set_ckpt_step(2);
  const absl::Status oldest = FindSavedRun(config, group_).status();
  EXPECT_TRUE(absl::IsDataLoss(oldest)) << oldest;
  EXPECT_THAT(std::string(oldest.message()), ::testing::Not(HasSubstr("--ckpt-step")));
}

}  // namespace
}  // namespace tessera
