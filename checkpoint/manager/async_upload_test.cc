// A job that is killed while it uploads loses nothing that it has committed, and reads again what
// is staged.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/testing/test_state.h"

namespace tessera::ckpt {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 300;

// A job of one process whose saves go through a staging folder.
class AsyncUploadTest : public ::testing::Test {
 protected:
  AsyncUploadTest() { fs::remove_all(root_); }

  CheckpointManagerOptions Options(int64_t last_step) {
    CheckpointManagerOptions options;
    options.background.emplace();
    options.schedule = {.interval_steps = 1, .last_step = last_step};
    options.async_upload = true;
    options.async_upload_tmp_folder = root_ + "/tmp";
    options.notes = [this](const std::string& note) { notes_.push_back(note); };
    return options;
  }
  // Trains until the end; returns the step from which the job resumed.
  int64_t Train(CheckpointManagerOptions options) {
    const int64_t last_step = options.schedule.last_step;
    auto manager = OrFail(JobSaves::Open(folder_, std::move(options)));
    std::vector<float> weight(kRows);
    const StateDict state = OneTensor(weight);
    const auto resumed = OrFail(manager->TryResume(state));
    const int64_t first = resumed.checkpoint.has_value() ? resumed.checkpoint->step() : 0;
    EXPECT_THAT(weight, Each(static_cast<float>(first)));
    for (int64_t step = first + 1; step <= last_step; ++step) {
      manager->WaitUntilAllCopied();
      weight.assign(weight.size(), static_cast<float>(step));
      EXPECT_OK(manager->TrySave({.step = step}, state));
      manager->Finish();
    }
    EXPECT_OK(manager->last_save());
    return first;
  }
  // As Train(), in a process that `save` kills.
  void TrainAndBeKilled(int64_t last_step, const std::function<void(SaveOptions&)>& kill) {
    const pid_t child = fork();
    if (child == 0) {
      CheckpointManagerOptions options = Options(last_step);
      kill(options.background->save);
      Train(std::move(options));
      _exit(1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
  }
  // Kills the second save.
  static void BeforeTheCommit(SaveOptions& save) {
    save.before_commit = [saves = 0]() mutable {
      if (++saves == 2) raise(SIGKILL);
      return absl::OkStatus();
    };
  }
  std::vector<std::string> Staged() const {
    std::vector<std::string> names;
    const std::string staging = StagingFolderOf(folder_, root_ + "/tmp");
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(staging, none)) {
      if (entry.is_directory()) names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  const std::string root_ = ::testing::TempDir() + "/async_upload";
  const std::string folder_ = root_ + "/remote";
  std::vector<std::string> notes_;
};

TEST_F(AsyncUploadTest, ARestartReadsWhatIsStagedAndACompleteJobLeavesNothing) {
  CheckpointManagerOptions first = Options(2);
  first.schedule.last_step = 3;
  {
    ASSERT_OK_AND_ASSIGN(const auto manager, CheckpointManager::Open(folder_, std::move(first)));
    std::vector<float> weight(kRows, 2);
    for (int64_t step = 1; step <= 2; ++step) {
      ASSERT_OK(manager->TrySave({.step = step}, OneTensor(weight)));
      ASSERT_OK(manager->Finish().at(0).report);
    }
  }
  EXPECT_THAT(Staged(), ElementsAre("step-00000002"));
  EXPECT_EQ(Train(Options(3)), 2);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("step-00000002 from copies in " + root_ + "/tmp/")));
  EXPECT_TRUE(fs::is_empty(root_ + "/tmp"));
  EXPECT_TRUE(fs::exists(folder_ + "/step-00000003/manifest.pb"));
}

TEST_F(AsyncUploadTest, AJobThatIsKilledBeforeTheUploadOrTheCommitLosesNothing) {
  // All of it is staged, and nothing uploaded.
  const auto before_the_upload = [](SaveOptions& save) {
    save.progress = [saves = std::make_shared<int>(0)](uint64_t done, uint64_t total) {
      if (done == total && ++*saves == 2) raise(SIGKILL);
    };
  };
  for (const std::function<void(SaveOptions&)>& kill :
       {std::function<void(SaveOptions&)>(before_the_upload), std::function(BeforeTheCommit)}) {
    fs::remove_all(root_);
    TrainAndBeKilled(3, kill);
    EXPECT_THAT(Staged(), ElementsAre("step-00000001", "step-00000002"));
    EXPECT_EQ(Train(Options(3)), 1);
    EXPECT_TRUE(fs::is_empty(root_ + "/tmp"));
    EXPECT_TRUE(fs::exists(folder_ + "/step-00000003/manifest.pb"));
  }
}

TEST_F(AsyncUploadTest, AStagingFolderInMemoryTakesAFileOfHalfOfTheFreeMemory) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "/dev/shm is not writable (needs: shm)";
  std::vector<float> weight(1 << 18);
  for (const uint64_t available : {uint64_t{1} << 20, uint64_t{5} << 19}) {
    fs::remove_all(root_);
    CheckpointManagerOptions options = Options(1000);
    options.async_upload_tmp_folder = "";
    options.background->available_memory_bytes = [available] { return available; };
    options.background->save.checksum_chunk_bytes = 64 << 10;
    const std::string staging = StagingFolderOf(folder_);
    ASSERT_OK_AND_ASSIGN(const auto manager, CheckpointManager::Open(folder_, std::move(options)));
    ASSERT_OK(manager->TrySave({.step = 1}, OneTensor(weight)));
    ASSERT_OK(manager->Finish().at(0).report);
    EXPECT_EQ(fs::exists(staging + "/step-00000001"), available > 2 << 20);
    EXPECT_TRUE(fs::exists(folder_ + "/step-00000001/manifest.pb"));
    fs::remove_all(staging);
  }
}

TEST_F(AsyncUploadTest, AFolderThatCannotBeUsedIsNamed) {
  const auto error = [&](const std::string& tmp_folder) {
    CheckpointManagerOptions options = Options(1);
    options.async_upload_tmp_folder = tmp_folder;
    return CheckpointManager::Open(folder_, std::move(options)).status();
  };
  for (const std::string& tmp_folder : {folder_, folder_ + "/below", root_}) {
    EXPECT_TRUE(absl::IsInvalidArgument(error(tmp_folder))) << tmp_folder;
    EXPECT_THAT(std::string(error(tmp_folder).message()),
                HasSubstr("async_upload_tmp_folder=" + tmp_folder + " and " + folder_));
  }
  const std::string staging = StagingFolderOf(folder_, root_ + "/tmp");
  fs::create_directories(staging + "/thesis");
  fs::permissions(staging, fs::perms::owner_all);
  EXPECT_THAT(std::string(error(root_ + "/tmp").message()), HasSubstr(staging + " is not empty"));
  std::ofstream(root_ + "/file") << "";
  EXPECT_THAT(std::string(error(root_ + "/file").message()), HasSubstr(root_ + "/file"));
  CheckpointManagerOptions in_foreground = Options(1);
  in_foreground.background.reset();
  EXPECT_TRUE(
      absl::IsInvalidArgument(CheckpointManager::Open(folder_, std::move(in_foreground)).status()));
}

}  // namespace
}  // namespace tessera::ckpt
