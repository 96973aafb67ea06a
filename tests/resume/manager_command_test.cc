// When a run saves, what it keeps and what it does on a full disk, as its user sees it.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/small_disk.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

#define SKIP_WITHOUT(disk) \
  if (!(disk).is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)"

class ManagerCommandTest : public CommandTest {
 protected:
  // A run that saves on the small disk.
  Words OnDisk(int steps, const Words& flags) const {
    return Alone(
        Joined({"--train-iters=" + std::to_string(steps), "--run-dir=" + RunDir("job").string(),
                "--save=" + (disk_ / "checkpoints").string()},
               flags));
  }
  void SetUp() override {
    CommandTest::SetUp();
    disk_ = root_ / "disk";
  }

  fs::path disk_;  // where a SmallDisk is mounted
};

// The decay of weights alone overflows.
TEST_F(ManagerCommandTest, AStateThatIsNotFiniteIsNeitherSavedNorExported) {
  constexpr char kError[] =
      "training has diverged: the state of step 1 is not finite; start again with a lower --lr";
  const Words broken = {"--lr=1e30", "--weight-decay=1e30"};
  for (const int steps : {3, 1}) {
    const Words flags = {"--save-interval=1", "--max-checkpoint-keep=1", "--save-on-exception"};
    const Result result = MustTrain("run", steps, Joined(broken, flags), 1);
    EXPECT_THAT(result.err, HasSubstr(kError));
    EXPECT_THAT(result.err, HasSubstr("step 1 is not saved: its state is not finite"));
    EXPECT_TRUE(Steps("run").empty());
  }
  const std::string weights = "--export-llmc=" + (root_ / "weights.bin").string();
  const Words exports = {"--train-iters=1", weights, "--export-llmc-interval=1"};
  const Result result = MustRun(Alone(Joined(broken, exports)), 1);
  EXPECT_THAT(result.err, HasSubstr(kError));
  EXPECT_THAT(result.out, HasSubstr("weights-00000001.bin: those of step 1 are not finite"));
  EXPECT_FALSE(fs::exists(root_ / "weights-00000001.bin"));
  EXPECT_FALSE(fs::exists(root_ / "weights.bin"));
}

TEST_F(ManagerCommandTest, PermanentCheckpointsOfEverySetting) {
  struct Case {
    Words flags;
    std::set<int64_t> kept;  // after five steps
  };
  const std::vector<Case> cases = {
      {{"--checkpoint-every=2"}, {2, 4, 5}},
      {{"--save-interval=100", "--save-interval-minutes=60"}, {5}},
      {{"--save-interval=100", "--save-interval-minutes=1e-7"}, {1, 2, 3, 4, 5}},
      {{"--save-interval=1", "--save-retain-minutes=1e-7"}, {4, 5}},
      {{"--save-interval=1", "--keep-latest-k=2", "--save-retain-interval=2"}, {2, 4, 5}},
      {{"--save-continuously"}, {1, 2, 3, 4, 5}}};
  int number = 0;
  for (const Case& c : cases) {
    const std::string run = "run" + std::to_string(++number);
    const Result result = MustTrain(run, 5, c.flags);
    EXPECT_EQ(Steps(run), c.kept) << c.flags.back();
    if (number > 1) continue;
    // Rolling checkpoints are saved at half of the interval unless their own interval is set.
    EXPECT_THAT(result.out, HasSubstr("saved step 1 in rolling-0"));
    EXPECT_THAT(result.out, HasSubstr("saved step 3 in rolling-1"));
  }
}

TEST_F(ManagerCommandTest, NonPersistentSaveIntervalKeepsTwoBesideThePermanentOnes) {
  const Words flags = {"--save-interval=6", "--oss-snapshot-freq=2", "--exit-interval=11"};
  MustTrain("run", 20, flags);
  const fs::path folder = Checkpoints("run");
  EXPECT_THAT(Steps("run"), ElementsAre(6, 11));
  EXPECT_TRUE(fs::exists(folder / "rolling-0/step-00000008/manifest.pb"));
  EXPECT_TRUE(fs::exists(folder / "rolling-1/step-00000010/manifest.pb"));
  EXPECT_FALSE(fs::exists(folder / "rolling-0/step-00000002"));
  EXPECT_FALSE(fs::exists(folder / "rolling-1/step-00000004"));
  fs::remove_all(folder / "step-00000011");
  // How long nothing ran is known without the records of steps.
  fs::remove(RunDir("run") / "metrics.jsonl");
  EXPECT_THAT(MustTrain("run", 13, flags).out, HasSubstr("rolling-1/step-00000010 (step 10)"));
  EXPECT_THAT(ReadFile(RunDir("run") / "events.jsonl"), HasSubstr("\"down_seconds\""));
  EXPECT_TRUE(fs::exists(folder / "rolling-0/step-00000008"));
  EXPECT_TRUE(fs::exists(folder / "rolling-1/step-00000010"));

  constexpr char kNone[] =
      "no rolling checkpoint is saved: save_interval=2 divides "
      "non_persistent_save_interval=4";
  const Result none = MustTrain("none", 5, {"--save-interval=2", "--oss-snapshot-freq=4"});
  EXPECT_THAT(none.out, HasSubstr(kNone));
  EXPECT_FALSE(fs::exists(Checkpoints("none") / "rolling-0"));
}

TEST_F(ManagerCommandTest, SaveTopKKeepsTheBestByValidationLoss) {
  MustTrain("run", 8,
            {"--save-interval=1", "--save-top-k=2", "--lr=3e-2", "--eval-interval=1",
             "--eval-iters=1", "--valid-data-path=" + Tokens()});
  std::vector<std::pair<double, int64_t>> by_loss;
  for (const nlohmann::json& record : Records("run")) {
    if (record["kind"] == "eval") by_loss.emplace_back(record["eval_loss"], record["step"]);
  }
  ASSERT_EQ(by_loss.size(), 8u);
  std::sort(by_loss.begin(), by_loss.end());
  EXPECT_EQ(Steps("run"), (std::set<int64_t>{by_loss[0].second, by_loss[1].second, 7, 8}));
}

TEST_F(ManagerCommandTest, LossesOfOtherValidationDataAreNotCompared) {
  const auto train = [&](int steps, const std::string& iterations) {
    return MustTrain("run", steps,
                     {"--save-interval=1", "--save-top-k=1", "--eval-interval=1",
                      "--eval-iters=" + iterations, "--valid-data-path=" + Tokens()});
  };
  train(3, "1");
  EXPECT_THAT(train(4, "1").out, Not(HasSubstr("other validation data")));
  EXPECT_THAT(train(5, "2").out, HasSubstr("other validation data"));
  EXPECT_EQ(Records("run").back()["best"], true);
  // The best of each data, of which one is the newest, and the one before it.
  EXPECT_EQ(Steps("run").size(), 3);
}

// The same command: without room it ends with one sentence, with room it continues.
TEST_F(ManagerCommandTest, ADiskThatIsFullLosesNothing) {
  const int64_t bytes = CheckpointBytes();
  const SmallDisk disk(disk_, bytes * 10);
  SKIP_WITHOUT(disk);
  disk.Fill(bytes * 5 / 2);
  const Words job = OnDisk(6, {"--save-interval=1"});
  for (const bool again : {false, true}) {
    const Result result = Run(job);
    EXPECT_EQ(result.exit_code, 1) << again;
    EXPECT_EQ(Lines(result.err), 1) << result.err;
    EXPECT_EQ(Count(result.err, (disk_ / "checkpoints").string()), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(" left"));
    EXPECT_EQ(Count(result.out, "(step 2)"), again) << result.out;
  }
  disk.MakeRoom();
  const Result result = MustRun(job);
  EXPECT_THAT(result.out, HasSubstr("(step 2)"));
  MustTrain("undisturbed", 6);
  EXPECT_EQ(Losses("job"), Losses("undisturbed"));
}

// There is room for a checkpoint and a half: all ranks end when the second save has failed.
TEST_F(ManagerCommandTest, OnAFullDiskSavesInTheBackgroundEndTheRun) {
  const SmallDisk disk(disk_, CheckpointBytes() * 3 / 2);
  SKIP_WITHOUT(disk);
  const Result result = MustRun(
      Mpirun(2, {"--train-iters=100000", "--save=" + disk.folder().string() + "/checkpoints",
                 "--run-dir=" + RunDir("job").string(), "--data-parallel-size=2", "--async-save",
                 "--save-interval=3", "--non-persistent-save-interval=0"}),
      1);
  EXPECT_THAT(result.out, HasSubstr("saved step 3:"));
  EXPECT_THAT(result.out, HasSubstr("step 6 is not saved: "));
  EXPECT_EQ(Count(result.err, " left"), 1) << result.err;
  EXPECT_LT(RecordCount("job"), 100000);
}

// The disk of run_dir alone is full: both ranks end, and the step that was done last is saved.
TEST_F(ManagerCommandTest, WhereRecordsCannotBeWrittenTheRunSavesAndEnds) {
  const SmallDisk disk(disk_, 1 << 20);
  SKIP_WITHOUT(disk);
  const fs::path records = disk_ / "job" / "metrics.jsonl";
  const Process process(
      Mpirun(2, {"--train-iters=100000", "--save=" + Checkpoints("run").string(),
                 "--run-dir=" + (disk_ / "job").string(), "--data-parallel-size=2"}),
      root_);
  EXPECT_TRUE(process.WaitUntil([&] { return Lines(ReadFile(records)) >= 3; }));
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
  SKIP_WITHOUT(disk);
  const Result result = MustRun(OnDisk(
      8, {"--save-interval=4", "--non-persistent-save-interval=1", "--max-checkpoint-keep=1"}));
  EXPECT_THAT(result.out,
              HasSubstr("the disk is full: rolling-1/step-00000002 made room for step 4"));
  // Never the newest one, which has a place among those that are kept.
  EXPECT_THAT(result.out, HasSubstr("the disk is full: step-00000004 made room for step 6"));
  EXPECT_TRUE(fs::exists(disk_ / "checkpoints" / "step-00000008"));
  EXPECT_FALSE(fs::exists(disk_ / "checkpoints" / "step-00000004"));
}

// The update of step 5 breaks the weights, which the loss of step 6 shows. The disk has room for
// two checkpoints.
TEST_F(ManagerCommandTest, TheCheckpointBeforeADivergenceStays) {
  const SmallDisk disk(disk_, CheckpointBytes() * 27 / 10);
  SKIP_WITHOUT(disk);
  const auto train = [&](int steps, const std::string& every, const Words& flags, int exit_code) {
    const Words keep = {"--save-interval=" + every, "--non-persistent-save-interval=0",
                        "--max-checkpoint-keep=1"};
    return MustRun(OnDisk(steps, Joined(keep, flags)), exit_code);
  };
  const auto is_saved = [&](int step) {
    return fs::exists(disk_ / "checkpoints" / ("step-0000000" + std::to_string(step)));
  };
  EXPECT_THAT(train(4, "1", {}, 0).out, Not(HasSubstr("the disk is full")));
  EXPECT_FALSE(is_saved(2));
  for (const int from : {4, 5}) {
    const Result diverged = train(1000, "5", {"--lr=1e30", "--lr-decay-style=constant"}, 1);
    EXPECT_THAT(diverged.out, HasSubstr("(step " + std::to_string(from) + ")"));
    EXPECT_THAT(diverged.err, HasSubstr("training has diverged"));
    EXPECT_THAT(diverged.err, HasSubstr(from == 4 ? "(--ckpt-step=4)" : "(--ckpt-step)"));
    EXPECT_TRUE(is_saved(4));
    EXPECT_TRUE(is_saved(5));
  }
  EXPECT_THAT(train(4, "1", {"--ckpt-step=4"}, 0).out, HasSubstr("(step 4)"));
}

// The temporary folder of uploads has room for a part of a checkpoint.
TEST_F(ManagerCommandTest, AsyncUploadTmpFolderMayBeFull) {
  const SmallDisk disk(disk_, CheckpointBytes() / 2);
  SKIP_WITHOUT(disk);
  MustTrain("run", 4,
            {"--async-upload", "--async-upload-tmp-folder=" + (disk_ / "staging").string()});
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4));
  EXPECT_TRUE(fs::is_empty(disk_ / "staging"));
  MustTrain("undisturbed", 6);
  MustTrain("run", 6);
  EXPECT_EQ(Losses("run"), Losses("undisturbed"));
}

// The folder outlives a run that is to go on, and is gone after the last step.
TEST_F(ManagerCommandTest, AsyncUploadTmpFolderIsInSharedMemoryUnlessSet) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "/dev/shm is not writable (needs: shm)";
  MustTrain("run", 8, {"--async-upload", "--exit-interval=4"});
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4));
  const Result resumed = MustTrain("run", 8, {"--async-upload"});
  const std::string start = "/dev/shm/tessera-" + std::to_string(geteuid()) + "-",
                    end = "_tmp_ckpt";
  EXPECT_THAT(resumed.out, HasSubstr(" from copies in " + start));
  const size_t at = resumed.out.find(start), length = resumed.out.find(end, at) + end.size() - at;
  ASSERT_LT(length, start.size() + 8 + end.size() + 1);
  EXPECT_FALSE(fs::exists(resumed.out.substr(at, length)));
  MustTrain("undisturbed", 8);
  EXPECT_EQ(Losses("run"), Losses("undisturbed"));
}

TEST_F(ManagerCommandTest, AsyncUploadTmpFolderLosesNothingOfOthers) {
  const fs::path shared = root_ / "shared";
  fs::create_directories(shared);
  WriteFile(shared / "thesis.tex", "years");
  const auto with_folder = [&](const fs::path& folder) {
    return Words{"--async-upload", "--async-upload-tmp-folder=" + folder.string()};
  };
  MustTrain("run", 4, with_folder(shared));
  EXPECT_EQ(ReadFile(shared / "thesis.tex"), "years");
  EXPECT_EQ(std::distance(fs::directory_iterator(shared), fs::directory_iterator()), 1);
  fs::create_directory_symlink(root_ / "run", root_ / "link");
  for (const fs::path& folder :
       {Checkpoints("run"), Checkpoints("run") / "below", root_ / "link" / "checkpoints", root_}) {
    const Result refused = Train("run", 6, with_folder(folder));
    EXPECT_EQ(refused.exit_code, 2) << folder;
    EXPECT_THAT(refused.err, HasSubstr("async_upload_tmp_folder=" + folder.string() + " and "));
    EXPECT_THAT(refused.err, HasSubstr("name a folder of its own"));
  }
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4));
}

}  // namespace
}  // namespace tessera
