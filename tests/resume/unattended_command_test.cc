// A job that is restarted until it is done, with each way of saving in turn, while its processes
// are killed and asked to stop, and, between restarts, its newest checkpoint is damaged and its
// disk filled.

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "gtest/gtest.h"
#include "tests/support/command.h"
#include "tests/support/small_disk.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 60;
constexpr int64_t kPermanent = 10;  // steps from one permanent checkpoint to the next
constexpr int64_t kRolling = 3;
constexpr int kMaxRounds = 60;
constexpr int64_t kDiskBytes = int64_t{1} << 29;

enum class SaveMode { kForeground, kBackground, kUpload };
constexpr int kSaveModes = 3;

class UnattendedCommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    disk_ = std::make_unique<SmallDisk>(root_ / "disk", kDiskBytes);
  }
  void TearDown() override {
    disk_.reset();
    CommandTest::TearDown();
  }

  fs::path Folder(const std::string& run) const { return disk_->folder() / run; }
  fs::path Staging() const { return root_ / "staging"; }

  Words Command(const std::string& run, SaveMode saving) const {
    Words command =
        Alone({"--train-iters=" + std::to_string(kSteps), "--run-dir=" + RunDir(run).string(),
               "--save=" + Folder(run).string(), "--save-interval=" + std::to_string(kPermanent),
               "--non-persistent-save-interval=" + std::to_string(kRolling),
               "--max-checkpoint-keep=2", "--stop-file-path=" + (root_ / "stop").string()});
    if (saving == SaveMode::kBackground) command.push_back("--async-save");
    if (saving == SaveMode::kUpload) {
      command.push_back("--async-upload");
      command.push_back("--async-upload-tmp-folder=" + Staging().string());
    }
    return command;
  }
  int64_t LastStep(const std::string& run) const { return RecordCount(run); }
  // As the next start will find them, newest first.
  std::vector<ckpt::CheckpointInfo> Saved(const std::string& run) const {
    const auto storage = ckpt::OpenStorage(Folder(run).string());
    if (!storage.ok()) return {};
    const auto saved = ckpt::ListForResume(**storage);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.value_or(std::vector<ckpt::CheckpointInfo>());
  }
  static int64_t NewestStep(const std::vector<ckpt::CheckpointInfo>& saved) {
    return saved.empty() ? 0 : saved.front().step;
  }
  uint32_t Random(uint32_t below) { return random_() % below; }

  // Disturbs the process once it has done some steps. Returns what was done.
  std::string Disturb(const Process& process, const std::string& run) {
    const int64_t until = LastStep(run) + 1 + Random(14);
    process.WaitUntil([&] { return LastStep(run) >= until; });
    const int64_t step = LastStep(run);
    switch (Random(5)) {
      case 0:
        process.Kill(SIGTERM);
        return "SIGTERM";
      case 1:
        process.Kill(SIGUSR1);
        return "SIGUSR1";
      case 2:
        // Some steps ahead, or passed already.
        std::ofstream(root_ / "stop") << std::max<int64_t>(1, step - 2 + Random(6)) << "\n";
        return "stop file";
      default:
        process.Kill(SIGKILL);
        return "SIGKILL";
    }
  }

  // Damages a file of the checkpoint.
  std::string Damage(const fs::path& checkpoint) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    const fs::path& file = files[Random(static_cast<uint32_t>(files.size()))];
    const uint64_t bytes = fs::file_size(file);
    const uint32_t kind = Random(4);
    if (kind == 0) {
      fs::resize_file(file, bytes / 2);
    } else if (kind == 1 && file.filename() != "manifest.pb") {
      fs::remove(file);
    } else {
      FlipBit(file, static_cast<int64_t>(random_() % bytes));
    }
    return file.string();
  }

  // Leaves room for less than three checkpoints, or for nothing at all. Returns what was done.
  std::string FillDisk(const fs::path& checkpoint) {
    const int64_t bytes = TreeBytes(checkpoint);
    const int64_t room = bytes * Random(30) / 10;
    disk_->Fill(room);
    return "room for " + std::to_string(room) + " bytes, " + std::to_string(bytes) +
           " a checkpoint";
  }

  std::unique_ptr<SmallDisk> disk_;
  std::mt19937 random_;
};

TEST_F(UnattendedCommandTest, LosesNothingWhateverHappens) {
  random_.seed(TestSeed());
  ASSERT_EQ(Run(Command("undisturbed", SaveMode::kForeground)).exit_code, 0);
  std::string history;
  int64_t lost = 0;
  bool done = false, full = false;
  for (int round = 0; round < kMaxRounds && !done; ++round) {
    const auto saving = static_cast<SaveMode>(round % kSaveModes);
    const Process process(Command("job", saving), root_);
    const std::string what = Disturb(process, "job");
    const Result result = process.Wait();
    const int64_t step = LastStep("job");
    std::vector<ckpt::CheckpointInfo> saved = Saved("job");
    history += "round " + std::to_string(round) + ": " + what + " at step " + std::to_string(step) +
               ", exit code " + std::to_string(result.exit_code) + ", newest " +
               std::to_string(NewestStep(saved)) + "\n";
    ASSERT_TRUE(result.exit_code == 0 || result.exit_code == 128 + SIGTERM ||
                result.exit_code == 128 + SIGINT || result.exit_code == 128 + SIGKILL ||
                (full && result.exit_code == 1))
        << history << result.err;
    // What ends a run on request loses no step; death, or a full disk, at most those since the last
    // rolling checkpoint. In the background another one is being written: training continues until
    // the next one is due, and stops a step after that where there was no room.
    const bool requested = result.exit_code != 128 + SIGKILL && result.exit_code != 1;
    const int64_t unsaved =
        saving == SaveMode::kForeground ? kRolling : 2 * kRolling + (full ? 1 : 0);
    EXPECT_LE(step - NewestStep(saved), requested ? 0 : unsaved) << history << result.out;
    if (result.exit_code == 1) EXPECT_EQ(Lines(result.err), 1) << history << result.err;
    if (full) disk_->MakeRoom();
    full = false;
    lost += step - NewestStep(saved);
    done = NewestStep(saved) == kSteps;
    if (done && saving == SaveMode::kUpload) EXPECT_TRUE(fs::is_empty(Staging())) << history;
    // The last checkpoint is never the only one: another one is intact.
    if (!done && saved.size() > 1 && Random(3) == 0) {
      history += "  damaged " + Damage(Folder("job") / saved.front().directory) + "\n";
    }
    if (!done && !saved.empty() && disk_->is_mounted() && Random(4) == 0) {
      full = true;
      history += "  " + FillDisk(Folder("job") / saved.back().directory) + "\n";
    }
  }
  EXPECT_TRUE(done) << history;
  EXPECT_EQ(Losses("job"), Losses("undisturbed")) << history;
  RecordProperty("steps_lost", std::to_string(lost));
  if (!disk_->is_mounted()) {
    GTEST_SKIP() << "the disk was not filled: mounting is not permitted here (needs: mount)";
  }
}

}  // namespace
}  // namespace tessera
