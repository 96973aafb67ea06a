// When a run saves, what it keeps and what it does on a full disk, as its user sees it.

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/directory/read_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/command.h"
#include "tests/resume/parallel_command.h"
#include "tests/resume/small_disk.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class ManagerCommandTest : public ParallelCommandTest {
 protected:
  // One process; saves to `folder`.
  Words Command(const std::string& run, int steps, const fs::path& folder,
                const Words& flags) const {
    Words command = {Runfile("trainer/app/train"), Config(),
                     "--train-iters=" + std::to_string(steps),
                     "--run-dir=" + (root_ / run).string()};
    if (!folder.empty()) command.push_back("--save=" + folder.string());
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  Result Train(const std::string& run, int steps, const Words& flags) const {
    return Run(Command(run, steps, Checkpoints(run), flags));
  }
  // Of the permanent checkpoints, ascending.
  std::set<int64_t> Steps(const std::string& run) const {
    std::set<int64_t> steps;
    for (const fs::directory_entry& entry : fs::directory_iterator(Checkpoints(run))) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("step-") || name.find('.') != std::string::npos) continue;
      if (fs::exists(entry.path() / "manifest.pb")) steps.insert(std::stoll(name.substr(5)));
    }
    return steps;
  }
  int64_t CheckpointBytes() const {
    EXPECT_EQ(Train("size", 1, {}).exit_code, 0);
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(Checkpoints("size") / "step-00000001")) {
      bytes += static_cast<int64_t>(entry.file_size());
    }
    return bytes;
  }
  void SetUp() override {
    ParallelCommandTest::SetUp();
    disk_ = root_ / "disk";
  }

  fs::path disk_;  // where a SmallDisk is mounted
};

TEST_F(ManagerCommandTest, SaveCkptFolderAndCheckpointEveryAreSaveAndSaveInterval) {
  const Result result = Run(Command(
      "run", 5, "", {"--save-ckpt-folder=" + Checkpoints("run").string(), "--checkpoint-every=2"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4, 5));
  // Half of it is the interval of the rolling ones unless that is set.
  EXPECT_THAT(result.out, HasSubstr("saved step 1 in rolling-0"));
  EXPECT_THAT(result.out, HasSubstr("saved step 3 in rolling-1"));
}

TEST_F(ManagerCommandTest, SaveTopKKeepsTheBestByValidationLoss) {
  const Result result =
      Train("run", 8,
            {"--save-interval=1", "--save-top-k=2", "--lr=3e-2", "--eval-interval=1",
             "--eval-iters=1", "--valid-data-path=" + (root_ / "tokens.bin").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::pair<double, int64_t>> by_loss;
  std::ifstream file(root_ / "run" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record["kind"] == "eval") by_loss.emplace_back(record["eval_loss"], record["step"]);
  }
  ASSERT_EQ(by_loss.size(), 8u);
  std::sort(by_loss.begin(), by_loss.end());
  EXPECT_EQ(Steps("run"), (std::set<int64_t>{by_loss[0].second, by_loss[1].second, 8}));
}

TEST_F(ManagerCommandTest, SaveRetainMinutesKeepsTheYoungest) {
  ASSERT_EQ(Train("hour", 5, {"--save-interval=1", "--save-retain-minutes=60"}).exit_code, 0);
  EXPECT_THAT(Steps("hour"), ElementsAre(1, 2, 3, 4, 5));
  ASSERT_EQ(Train("moment", 5, {"--save-interval=1", "--save-retain-minutes=1e-7"}).exit_code, 0);
  EXPECT_THAT(Steps("moment"), ElementsAre(5));
}

TEST_F(ManagerCommandTest, SaveIntervalMinutesSavesByTheClock) {
  ASSERT_EQ(Train("hour", 5, {"--save-interval-minutes=60"}).exit_code, 0);
  EXPECT_THAT(Steps("hour"), ElementsAre(5));
  ASSERT_EQ(Train("moment", 5, {"--save-interval-minutes=1e-7"}).exit_code, 0);
  EXPECT_THAT(Steps("moment"), ElementsAre(1, 2, 3, 4, 5));
}

// On a disk on which a save does not end, the next one does not begin.
TEST_F(ManagerCommandTest, SaveContinuouslyBeginsTheNextWhenTheLastIsDone) {
  ASSERT_EQ(Train("quick", 4, {"--save-continuously"}).exit_code, 0);
  EXPECT_THAT(Steps("quick"), ElementsAre(1, 2, 3, 4));

  const fs::path gate = root_ / "gate";
  setenv("LD_PRELOAD", Runfile("tests/resume/slow_disk.so").c_str(), 1);
  setenv("SLOW_DISK_GATE", gate.c_str(), 1);
  const Process process(
      Command("slow", 60, Checkpoints("slow"), {"--save-continuously", "--async-save"}), root_);
  unsetenv("LD_PRELOAD");
  unsetenv("SLOW_DISK_GATE");
  while (!process.Ended() && Lines(ReadFile(root_ / "slow" / "metrics.jsonl")) < 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(Steps("slow"), IsEmpty());
  EXPECT_FALSE(fs::exists(Checkpoints("slow") / "step-00000002"));
  std::ofstream(gate) << "open";
  const Result result = process.Wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::set<int64_t> steps = Steps("slow");
  EXPECT_TRUE(steps.contains(1));
  EXPECT_TRUE(steps.contains(60));
  EXPECT_GE(steps.size(), 3u);
  for (int64_t step = 2; step <= 10; ++step) EXPECT_FALSE(steps.contains(step)) << step;
}

// The same command: without room it ends with one sentence, with room it continues.
TEST_F(ManagerCommandTest, ADiskThatIsFullLosesNothing) {
  const int64_t bytes = CheckpointBytes();
  const SmallDisk disk(disk_, bytes * 10);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  disk.Fill(bytes * 5 / 2);
  const Words flags = {"--save-interval=1"};
  const Words job = Command("job", 6, disk_ / "checkpoints", flags);
  for (const char* const start : {"first", "again"}) {
    const Result result = Run(job);
    EXPECT_EQ(result.exit_code, 1) << start;
    EXPECT_EQ(Lines(result.err), 1) << result.err;
    EXPECT_EQ(Count(result.err, (disk_ / "checkpoints").string()), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(" left"));
    EXPECT_EQ(Count(result.out, "(step 2)"), start == std::string("again")) << result.out;
  }
  disk.MakeRoom();
  const Result result = Run(job);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("(step 2)"));
  ASSERT_EQ(Train("undisturbed", 6, flags).exit_code, 0);
  EXPECT_EQ(Losses("job"), Losses("undisturbed"));
}

// Room for a checkpoint and a half: all ranks end when the second save has failed.
TEST_F(ManagerCommandTest, OnAFullDiskSavesInTheBackgroundEndTheRun) {
  const SmallDisk disk(disk_, CheckpointBytes() * 3 / 2);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  const Result result =
      Run(Mpirun(2, {"--train-iters=200", "--save=" + disk.folder().string() + "/checkpoints",
                     "--run-dir=" + (root_ / "job").string(), "--data-parallel-size=2",
                     "--async-save", "--save-interval=3", "--non-persistent-save-interval=0"}));
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.out, HasSubstr("saved step 3:"));
  EXPECT_THAT(result.out, HasSubstr("step 6 is not saved: "));
  EXPECT_EQ(Count(result.err, " left"), 1) << result.err;
  EXPECT_LE(Lines(ReadFile(root_ / "job" / "metrics.jsonl")), 10);
}

// The disk of run_dir alone: both ranks end, and the step that was done last is saved.
TEST_F(ManagerCommandTest, WhereRecordsCannotBeWrittenTheRunSavesAndEnds) {
  const SmallDisk disk(disk_, 1 << 20);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  const fs::path records = disk_ / "job" / "metrics.jsonl";
  const Process process(
      Mpirun(2, {"--train-iters=100000", "--save=" + Checkpoints("run").string(),
                 "--run-dir=" + (disk_ / "job").string(), "--data-parallel-size=2"}),
      root_);
  while (!process.Ended() && Lines(ReadFile(records)) < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  disk.Fill(0);
  const Result result = process.Wait();
  EXPECT_EQ(result.exit_code, 1) << result.out;
  // Whichever rank ends first says it.
  EXPECT_EQ(Count(result.err, records.string() + ": No space left on device"), 1) << result.err;
  const int64_t recorded = Lines(ReadFile(records));  // the next one failed
  EXPECT_THAT(Steps("run"), ElementsAre(recorded + 2)) << result.out << result.err;
}

TEST_F(ManagerCommandTest, OnAFullDiskRollingOnesGiveRoomToPermanentOnes) {
  const SmallDisk disk(disk_, CheckpointBytes() * 27 / 10);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  const Result result = Run(Command(
      "job", 8, disk_ / "checkpoints",
      {"--save-interval=4", "--non-persistent-save-interval=1", "--max-checkpoint-keep=1"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("the disk is full: rolling-1/step-00000002 made room for step 4"));
  // Never the newest one, which has a place among those that are kept.
  EXPECT_THAT(result.out, HasSubstr("the disk is full: step-00000004 made room for step 6"));
  EXPECT_TRUE(fs::exists(disk_ / "checkpoints" / "step-00000008"));
  EXPECT_FALSE(fs::exists(disk_ / "checkpoints" / "step-00000004"));
}

// The temporary folder of uploads has room for a part of a checkpoint.
TEST_F(ManagerCommandTest, AsyncUploadTmpFolderMayBeFull) {
  const SmallDisk disk(disk_, CheckpointBytes() / 2);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  const Result result = Train("run", 4,
                              {"--save-interval=2", "--async-upload",
                               "--async-upload-tmp-folder=" + (disk_ / "nearby").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4));
  EXPECT_TRUE(fs::is_empty(disk_ / "nearby"));
  ASSERT_EQ(Train("undisturbed", 6, {}).exit_code, 0);
  ASSERT_EQ(Train("run", 6, {}).exit_code, 0);
  EXPECT_EQ(Losses("run"), Losses("undisturbed"));
}

TEST_F(ManagerCommandTest, AsyncUploadTmpFolderLosesNothingOfOthers) {
  const fs::path shared = root_ / "shared";
  fs::create_directories(shared);
  std::ofstream(shared / "thesis.tex") << "years";
  const Words flags = {"--save-interval=2", "--async-upload"};
  const auto with_folder = [&](const fs::path& folder) {
    Words words = flags;
    words.push_back("--async-upload-tmp-folder=" + folder.string());
    return words;
  };
  ASSERT_EQ(Train("run", 4, with_folder(shared)).exit_code, 0);
  EXPECT_EQ(ReadFile(shared / "thesis.tex"), "years");
  EXPECT_EQ(std::distance(fs::directory_iterator(shared), fs::directory_iterator()), 1);
  fs::create_directory_symlink(root_ / "run", root_ / "link");
  for (const fs::path& folder : {Checkpoints("run"), Checkpoints("run") / "below", root_ / "run",
                                 root_ / "link" / "checkpoints", root_}) {
    const Result refused = Train("run", 6, with_folder(folder));
    EXPECT_EQ(refused.exit_code, 2) << folder;
    EXPECT_THAT(refused.err, HasSubstr("async_upload_tmp_folder=" + folder.string() + " and "));
    EXPECT_THAT(refused.err, HasSubstr("name a folder of its own"));
  }
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4));
}

// As `ckpt verify` and the load of another run do.
TEST_F(ManagerCommandTest, RetentionLeavesWhatAnotherProcessReads) {
  const Words keep = {"--save-interval=2", "--non-persistent-save-interval=0",
                      "--max-checkpoint-keep=1"};
  ASSERT_EQ(Train("run", 2, keep).exit_code, 0);
  const auto storage = ckpt::OpenPosixStorage(Checkpoints("run").string());
  ASSERT_TRUE(storage.ok());
  {
    const ckpt::ReadLock reader(**storage, "step-00000002");
    const Result result = Train("run", 6, keep);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(Steps("run"), ElementsAre(2, 6));
  }
  ASSERT_EQ(Train("run", 8, keep).exit_code, 0);
  EXPECT_THAT(Steps("run"), ElementsAre(8));
}

TEST_F(ManagerCommandTest, AutoResumeSkipsAllThatIsIncompleteAndSaysWhatItPassesOverOnce) {
  const Words flags = {"--save-interval=2", "--non-persistent-save-interval=0"};
  ASSERT_EQ(Train("run", 8, flags).exit_code, 0);
  fs::remove(Checkpoints("run") / "step-00000008" / "manifest.pb");
  fs::remove(Checkpoints("run") / "step-00000006" / "manifest.pb");
  fs::remove(DataFile(Checkpoints("run") / "step-00000004", "model-"));
  const Result result = Train("run", 10, flags);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-00000002 (step 2)"));
  const size_t at = result.out.find("WARNING: skipped ");
  ASSERT_NE(at, result.out.npos) << result.out;
  const std::string warning = result.out.substr(at, result.out.find('\n', at) - at);
  EXPECT_EQ(Count(warning, Checkpoints("run").string()), 1) << warning;
  EXPECT_EQ(Count(warning, "model-"), 1) << warning;
  EXPECT_EQ(Count(warning, "step-00000004"), 2) << warning;
  EXPECT_THAT(warning, HasSubstr("; it is now called step-00000004.damaged"));
}

// The run that the stop file has ended is not ended again by it when its checkpoint is damaged.
TEST_F(ManagerCommandTest, StopFilePathStopsOnceAlsoWhereItsCheckpointIsDamaged) {
  const fs::path stop_file = root_ / "stop";
  const Words flags = {"--save-interval=2", "--non-persistent-save-interval=0",
                       "--stop-file-path=" + stop_file.string()};
  std::ofstream(stop_file) << "5\n";
  Result result = Train("run", 9, flags);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped by " + stop_file.string() + " after step 5"));
  fs::resize_file(Checkpoints("run") / "step-00000005" / "manifest.pb", 10);
  result = Train("run", 9, flags);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("(step 4)"));
  EXPECT_THAT(result.out, Not(HasSubstr("stopped by")));
  EXPECT_TRUE(Steps("run").contains(9));
  // Written anew it is another request; a step that has passed means the next one.
  fs::remove(stop_file);
  std::ofstream(stop_file) << "11\n";
  result = Train("run", 13, flags);
  EXPECT_THAT(result.out, HasSubstr("stopped by " + stop_file.string() + " after step 11"));
  ASSERT_EQ(Train("undisturbed", 11, flags).exit_code, 0);
  EXPECT_EQ(Losses("run"), Losses("undisturbed"));
}

}  // namespace
}  // namespace tessera
