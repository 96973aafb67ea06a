#include "trainer/state/checkpoints.h"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
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

  // Creates a step whose manifest exists, but is damaged.
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
  EXPECT_TRUE(absl::IsDataLoss(load)) << load;
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
    const absl::StatusOr<std::string> sentence = DescribePassedOver(config, step);
    EXPECT_TRUE(sentence.ok()) << sentence.status();
    return sentence.value_or("");
  };
  WriteStep("step-00000004");
  EXPECT_EQ(said(-1), "");
  fs::create_directories(folder_ + "/step-00000002");
  fs::create_directories(folder_ + "/step-00000006");
  fs::create_directories(folder_ + "/something-else");
  EXPECT_EQ(said(4), "skipped in " + folder_ +
                         ": step-00000006, a save that was never completed (no manifest.pb)");
  EXPECT_THAT(said(-1), HasSubstr("step-00000002, step-00000006, saves that were never"));
  EXPECT_EQ(said(6), "");
  config.set_load(folder_ + "/none");
  EXPECT_EQ(said(-1), "");
}

// Runs `body` as a user without privileges; returns a description of the failure, or "".
std::string WithoutPrivileges(const std::function<std::string()>& body) {
  int fds[2];
  if (pipe(fds) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    const std::string problem = syscall(SYS_capset, &header, none) == 0 ? body() : "capset";
    _exit(write(fds[1], problem.data(), problem.size()) < 0 ? 1 : 0);
  }
  close(fds[1]);
  std::string problem;
  char buffer[4096];
  for (ssize_t n; (n = read(fds[0], buffer, sizeof(buffer))) > 0;) problem.append(buffer, n);
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? problem : problem + " (the child died)";
}

TEST_F(CheckpointsTest, AnUnreadableOldStepIsPassedOverAndSaid) {
  CheckpointConfig config;
  config.set_load(folder_);
  config.set_save(folder_);
  for (const char* name : {"step-00000002", "step-00000004"}) {
    const auto storage = ckpt::OpenPosixStorage(folder_);
    ASSERT_TRUE(storage.ok());
    const auto saved = ckpt::Save(**storage, "", name[12] - '0', {});
    ASSERT_TRUE(saved.ok()) << saved.status();
  }
  ASSERT_EQ(chmod((folder_ + "/step-00000002").c_str(), 0), 0);
  EXPECT_EQ(WithoutPrivileges([&]() -> std::string {
              const auto newest = FindSavedRun(config, group_);
              if (!newest.ok()) return newest.status().ToString();
              if ((*newest)->directory != "step-00000004") return (*newest)->directory;
              const auto said = DescribePassedOver(config, 4);
              if (!said.ok()) return said.status().ToString();
              if (said->find("step-00000002, which cannot be read (") == said->npos) return *said;
              const auto lock = ReserveSaveFolder(config, 4, group_);
              if (!lock.ok()) return lock.status().ToString();
              // It may hold a checkpoint of the future that this run would abandon.
              const auto earlier = ReserveSaveFolder(config, 1, group_).status();
              if (!absl::IsFailedPrecondition(earlier)) return earlier.ToString();
              // Where it is requested, or may be the only one, there is no fresh start.
              CheckpointConfig old = config;
              old.set_ckpt_step(2);
              const auto wanted = FindSavedRun(old, group_).status();
              if (!absl::IsPermissionDenied(wanted)) return wanted.ToString();
              chmod((folder_ + "/step-00000004").c_str(), 0);
              const auto none = FindSavedRun(config, group_).status();
              return absl::IsPermissionDenied(none) ? "" : none.ToString();
            }),
            "");
  for (const char* name : {"step-00000002", "step-00000004"}) {
    chmod((folder_ + "/" + name).c_str(), 0777);
  }
}

TEST_F(CheckpointsTest, AnOversizedManifestIsDamage) {
  WriteStep("step-00000002");
  WriteStep("step-00000004");
  const std::string manifest = folder_ + "/step-00000004/manifest.pb";
  ASSERT_EQ(truncate(manifest.c_str(), off_t{3} << 30), 0);
  CheckpointConfig config;
  config.set_load(folder_);
  const absl::Status newest = FindSavedRun(config, group_).status();
  EXPECT_TRUE(absl::IsDataLoss(newest)) << newest;
  EXPECT_THAT(std::string(newest.message()), HasSubstr(manifest));
  EXPECT_THAT(std::string(newest.message()), HasSubstr("offset"));
  EXPECT_THAT(std::string(newest.message()), HasSubstr("--ckpt-step=2"));
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
