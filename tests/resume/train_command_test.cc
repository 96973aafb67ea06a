// The train command from the user's point of view: wrong input, signals, damage.

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/command.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TrainCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_);
    std::mt19937 random(3);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20000; ++i) tokens.push_back(static_cast<int32_t>(random() % 100));
    auto writer = TokenFileWriter::Create((root_ / "tokens.bin").string(), TokenFormat::kGpt2);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(tokens).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }
  void TearDown() override { fs::remove_all(root_); }

  // `train` with settings for a small run of `steps` steps, then `extra`.
  std::vector<std::string> Command(int steps, const std::vector<std::string>& extra) const {
    const char* source_dir = std::getenv("TEST_SRCDIR");
    std::vector<std::string> command = {std::string(source_dir) + "/tessera/trainer/app/train",
                                        "--size=gpt2-tiny",
                                        "--vocab-size=100",
                                        "--seq-length=32",
                                        "--micro-batch-size=2",
                                        "--lr=1e-3",
                                        "--threads=1",
                                        "--train-iters=" + std::to_string(steps),
                                        "--train-data-path=" + (root_ / "tokens.bin").string()};
    command.insert(command.end(), extra.begin(), extra.end());
    return command;
  }
  Result Run(int steps, const std::vector<std::string>& extra) const {
    return Process(Command(steps, extra), root_).Wait();
  }
  std::vector<std::string> Folders(const std::string& run) const {
    return {"--run-dir=" + (root_ / run).string(), "--save=" + Checkpoints(run).string(),
            "--save-interval=1"};
  }
  fs::path Checkpoints(const std::string& run) const { return root_ / run / "checkpoints"; }

  std::map<int64_t, std::string> Losses(const std::string& run) const {
    std::map<int64_t, std::string> losses;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      EXPECT_TRUE(losses.emplace(record["step"], record["loss_bits"]).second) << line;
    }
    return losses;
  }

  // Exit code 2 for user errors, 1 for other failures; one line either way.
  void ExpectRefused(const std::vector<std::string>& extra, int exit_code,
                     const std::string& message) const {
    const Result result = Run(3, extra);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  fs::path root_;
};

TEST_F(TrainCommandTest, WrongSettingsAreAnsweredByOneLineThatNamesThem) {
  ExpectRefused({"--learning-rate=1"}, 2, "--learning-rate");
  ExpectRefused({"--lr=abc"}, 2, "--lr");
  ExpectRefused({"--config=/nowhere/x.textproto"}, 1, "/nowhere/x.textproto");
  ExpectRefused({"--global-batch-size=3"}, 2, "global_batch_size");
  ExpectRefused({"--num-attention-heads=3"}, 2, "num_attention_heads");
  ExpectRefused({"--train-data-path=/nowhere/*.bin"}, 1, "/nowhere/*.bin");
  ExpectRefused({"--vocab-size=50"}, 1, "tokens.bin");
  ExpectRefused({"--llmc-filepath=/nowhere/model.bin"}, 1, "/nowhere/model.bin");
  ExpectRefused({"--load=/nowhere", "--exit-on-missing-checkpoint"}, 1, "/nowhere");
  const std::string no_folder = (root_ / "tokens.bin" / "x").string();
  ExpectRefused({"--save-interval=1", "--save=" + no_folder}, 1, no_folder);
  ExpectRefused({"--run-dir=" + no_folder}, 2, no_folder);
  // At the start, instead of after the training.
  ExpectRefused({"--export-llmc=/nowhere/model.bin"}, 1,
                "export_llmc: cannot open the directory of /nowhere/");
  ExpectRefused({"--export-llmc=" + root_.string()}, 2, "is a folder");
  ExpectRefused({"--export-llmc=x.bin", "--ffn-hidden-size=100"}, 2,
                "export_llmc: ffn_hidden_size");
}

TEST_F(TrainCommandTest, MoreMemoryThanThereIsIsRefusedWithTheSizes) {
  ExpectRefused({"--micro-batch-size=10000000"}, 1, "activations");
  ExpectRefused({"--num-layers=100000000"}, 1, "weights");
  ExpectRefused({"--hidden-size=1000000", "--num-attention-heads=1000"}, 1, "weights");
  ExpectRefused({"--num-layers=2000000000", "--hidden-size=1000000"}, 2, "num_layers");
}

TEST_F(TrainCommandTest, TruncatedTokensAreReported) {
  fs::resize_file(root_ / "tokens.bin", 5000);
  ExpectRefused({}, 1, "tokens.bin");
}

TEST_F(TrainCommandTest, DamagedCheckpointIsReportedWithFileAndOffset) {
  ASSERT_EQ(Run(2, Folders("run")).exit_code, 0);
  const fs::path file = DataFile(Checkpoints("run") / "step-00000002", "model-");
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<int64_t>(fs::file_size(file)) - 1000);
  stream.put('\x5a');
  stream.close();
  std::vector<std::string> resume = Folders("run");
  resume.push_back("--load=" + Checkpoints("run").string());
  resume.push_back("--auto-resume=false");
  ExpectRefused(resume, 1, file.filename().string());

  for (const fs::path& replaced : {file, file.parent_path() / "manifest.pb"}) {
    fs::remove_all(replaced);
    ASSERT_EQ(mkfifo(replaced.c_str(), 0600), 0);
    ExpectRefused(resume, 1, replaced.string() + ": not a regular file; --ckpt-step=1 resumes");
  }
}

TEST_F(TrainCommandTest, SavesTheLastStepAndLoadsASingleCheckpointUnderAnyName) {
  const auto folders = [&](const std::string& run) {
    return std::vector<std::string>{"--lr-decay-iters=5", "--run-dir=" + (root_ / run).string(),
                                    "--save=" + Checkpoints(run).string()};
  };
  ASSERT_EQ(Run(5, folders("whole")).exit_code, 0);
  ASSERT_EQ(Run(3, folders("run")).exit_code, 0);
  std::vector<std::string> saved;
  for (const auto& entry : fs::directory_iterator(Checkpoints("run"))) {
    if (entry.is_directory()) saved.push_back(entry.path().filename());
  }
  EXPECT_EQ(saved, std::vector<std::string>{"step-00000003"});
  const fs::path copy = root_ / "best so far";
  fs::copy(Checkpoints("run") / "step-00000003", copy, fs::copy_options::recursive);
  for (const fs::path& checkpoint : {Checkpoints("run") / "step-00000003", copy}) {
    const std::string run = checkpoint == copy ? "from_copy" : "from_step";
    std::vector<std::string> resume = folders(run);
    resume.push_back("--load=" + checkpoint.string());
    const Result result = Run(5, resume);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::map<int64_t, std::string> losses = Losses("whole");
    for (int64_t step = 1; step <= 3; ++step) losses.erase(step);
    EXPECT_EQ(Losses(run), losses);
  }
  ExpectRefused({"--load=" + copy.string(), "--ckpt-step=2"}, 1,
                "ckpt_step 2: " + copy.string() + " is a single checkpoint, of step 3");
}

TEST_F(TrainCommandTest, FolderInThePlaceOfAFileIsDamage) {
  ASSERT_EQ(Run(2, Folders("run")).exit_code, 0);
  const fs::path step = Checkpoints("run") / "step-00000002";
  const fs::path file = DataFile(step, "model-");
  fs::remove(file);
  fs::create_directory(file);
  std::vector<std::string> resume = Folders("run");
  resume.push_back("--load=" + Checkpoints("run").string());
  resume.push_back("--auto-resume=false");
  ExpectRefused(resume, 1, "--ckpt-step=1 resumes");
  // A checkpoint without its manifest is an incomplete save.
  fs::remove(step / "manifest.pb");
  const Result result = Run(3, resume);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-00000002, a save that was never completed"));
  EXPECT_THAT(result.out, HasSubstr("(step 1)"));
}

TEST_F(TrainCommandTest, WeightsGoOutAndComeInAsLlmcFiles) {
  for (const std::string dtype : {"--bf16=false", "--bf16"}) {
    const std::string first = (root_ / "first.bin").string();
    const std::string second = (root_ / "second.bin").string();
    ASSERT_EQ(Run(2, {"--export-llmc=" + first, dtype}).exit_code, 0);
    const Result imported = Run(0, {"--llmc-filepath=" + first, "--export-llmc=" + second, dtype});
    EXPECT_EQ(imported.exit_code, 0) << imported.err;
    EXPECT_TRUE(ReadFile(first) == ReadFile(second));
    EXPECT_GT(fs::file_size(first), 1024u);
  }
}

TEST_F(TrainCommandTest, EvaluatesWithoutTraining) {
  const Result result =
      Run(0, {"--valid-data-path=" + (root_ / "tokens.bin").string(), "--eval-iters=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("nothing left to train"));
  EXPECT_THAT(result.out, HasSubstr("eval"));
}

TEST_F(TrainCommandTest, StopSignalEndsCleanlyAfterTheStep) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    const std::string run = "run" + std::to_string(signal);
    const Process process(Command(1000000, Folders(run)), root_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!fs::exists(Checkpoints(run) / "step-00000003" / "manifest.pb")) {
      if (std::chrono::steady_clock::now() > deadline) {
        process.Kill(SIGKILL);
        FAIL() << "no third checkpoint: " << process.Wait().err;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    process.Kill(signal);
    const Result result = process.Wait();
    // SIGUSR1 stands for SIGINT.
    EXPECT_EQ(result.exit_code, 128 + (signal == SIGUSR1 ? SIGINT : signal)) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped by signal"));
    EXPECT_GE(Losses(run).size(), 3u);
  }
}

int64_t TreeBytes(const fs::path& root) {
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += "'" + word + "' ";
  return line;
}

// A file system with room for one checkpoint and a half: the second save fails, the first one
// resumes.
TEST_F(TrainCommandTest, FullDiskEndsTheRunAndKeepsTheLastCheckpoint) {
  ASSERT_EQ(Run(1, Folders("size")).exit_code, 0);
  const int64_t room = TreeBytes(Checkpoints("size")) * 3 / 2;
  const fs::path disk = root_ / "disk";
  fs::create_directories(disk);
  const std::vector<std::string> folders = {"--save=" + (disk / "checkpoints").string(),
                                            "--load=" + (disk / "checkpoints").string(),
                                            "--save-interval=1"};
  std::vector<std::string> resume = folders;
  resume.push_back("--ckpt-step=1");
  const std::string script = "mount -t tmpfs -o size=" + std::to_string(room) + " tmpfs '" +
                             disk.string() + "' || exit 99; " + Joined(Command(3, folders)) +
                             "; echo first $?; " + Joined(Command(1, resume)) + "; echo second $?";
  const Result result = Process({"/usr/bin/unshare", "-rm", "/bin/sh", "-c", script}, root_).Wait();
  if (result.exit_code == 99 || result.err.starts_with("unshare:")) {
    GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  }
  EXPECT_THAT(result.out, HasSubstr("first 1"));
  EXPECT_THAT(result.err, HasSubstr((disk / "checkpoints").string()));
  EXPECT_THAT(result.err, HasSubstr(" left"));
  EXPECT_THAT(result.out, HasSubstr("(step 1)"));
  EXPECT_THAT(result.out, HasSubstr("second 0"));
}

// Before the first step, not at the first save.
TEST_F(TrainCommandTest, AFolderForReadingOnlyIsRefusedAtTheStart) {
  const fs::path disk = root_ / "disk";
  fs::create_directories(disk);
  const std::string script =
      "mount -t tmpfs tmpfs '" + disk.string() + "' && mkdir '" + disk.string() +
      "/checkpoints' && mount -o remount,ro '" + disk.string() + "' || exit 99; " +
      Joined(Command(3, {"--save=" + (disk / "checkpoints").string(), "--save-interval=3"}));
  const Result result = Process({"/usr/bin/unshare", "-rm", "/bin/sh", "-c", script}, root_).Wait();
  if (result.exit_code == 99 || result.err.starts_with("unshare:")) {
    GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  }
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "train: save: nothing can be written to " +
                            (disk / "checkpoints").string() + ": Read-only file system\n");
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("step 1/3")));
}

// The newest checkpoint of a folder, "" where there is none.
std::string Newest(const fs::path& checkpoints) {
  std::string newest;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && fs::exists(entry.path() / "manifest.pb") &&
        name.find('.') == std::string::npos) {
      newest = std::max(newest, name);
    }
  }
  return newest;
}

void FlipByte(const fs::path& file, int64_t from_the_end) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<int64_t>(fs::file_size(file)) - from_the_end;
  stream.seekg(at);
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(at);
  stream.put(byte);
}

class SelfRestartingTest : public TrainCommandTest {
 protected:
  // Saves every second step to a folder of its own.
  std::vector<std::string> Job(const std::string& run, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--run-dir=" + (root_ / run).string(),
                             "--save=" + Checkpoints(run).string(), "--lr-decay-iters=50"});
    if (std::none_of(more.begin(), more.end(),
                     [](const auto& flag) { return flag.starts_with("--save-interval"); })) {
      more.push_back("--save-interval=2");
    }
    return more;
  }
  void ExpectUndisturbed(const std::string& run, int steps) const {
    ASSERT_EQ(Run(steps, Job("undisturbed")).exit_code, 0);
    EXPECT_EQ(Losses(run), Losses("undisturbed"));
  }
};

// The same command again: what is damaged is set aside, and the run continues from what is left.
TEST_F(SelfRestartingTest, ADamagedNewestCheckpointIsNoDeadEnd) {
  const fs::path newest = Checkpoints("run") / "step-00000004";
  const std::vector<std::pair<std::string, std::function<void()>>> kinds = {
      {"flipped byte", [&] { FlipByte(DataFile(newest, "model-"), 1000); }},
      {"truncated manifest",
       [&] { fs::resize_file(newest / "manifest.pb", fs::file_size(newest / "manifest.pb") / 2); }},
      {"empty manifest", [&] { fs::resize_file(newest / "manifest.pb", 0); }},
      {"missing file", [&] { fs::remove(DataFile(newest, "model-")); }}};
  int number = 0;
  for (const auto& [kind, damage] : kinds) {
    SCOPED_TRACE(kind);
    const Result first = Run(4, Job("run", {"--non-persistent-save-interval=3"}));
    ASSERT_EQ(first.exit_code, 0) << first.err;
    damage();
    const Result second = Run(4, Job("run", {"--non-persistent-save-interval=3"}));
    ASSERT_EQ(second.exit_code, 0) << second.err;
    EXPECT_THAT(second.out, HasSubstr("skipped " + newest.string() + ": "));
    EXPECT_THAT(second.out, HasSubstr("rolling-0/step-00000003 (step 3)"));
    EXPECT_TRUE(fs::exists(Checkpoints("run") /
                           (++number == 1 ? "step-00000004.damaged"
                                          : "step-00000004.damaged-" + std::to_string(number))));
    EXPECT_EQ(Losses("run").size(), 4u);
  }
  const Result last = Run(8, Job("run"));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  ExpectUndisturbed("run", 8);
}

// Which would be the loss of everything without a word: a job that restarts itself ends instead.
TEST_F(SelfRestartingTest, WhereAllAreDamagedTheRunEndsUntilItIsToldToBeginAnew) {
  ASSERT_EQ(Run(4, Job("run")).exit_code, 0);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(Checkpoints("run"))) {
    if (entry.path().filename() == "manifest.pb") fs::resize_file(entry.path(), 10);
  }
  const auto expect_refused = [&] {
    const Result refused = Run(4, Job("run"));
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("no checkpoint in " + Checkpoints("run").string()));
    EXPECT_THAT(refused.err, HasSubstr("--resume-ignore-no-valid-checkpoint begins at step 0"));
    EXPECT_EQ(Losses("run").size(), 4u);
  };
  expect_refused();
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "step-00000004" / "manifest.pb"));
  // Killed before its first checkpoint, it does not begin anew by itself either.
  const std::vector<std::string> anew = Job("run", {"--resume-ignore-no-valid-checkpoint"});
  std::vector<std::string> unsaved = anew;
  unsaved.push_back("--train-iters=0");
  Result again = Run(4, unsaved);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "step-00000004"));
  again = Run(4, anew);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("it is now called step-00000004.damaged"));
  ExpectUndisturbed("run", 4);
  fs::remove_all(Checkpoints("run") / "step-00000004");
  fs::remove_all(Checkpoints("run") / "step-00000002");
  for (const char* slot : {"rolling-0", "rolling-1"}) fs::remove_all(Checkpoints("run") / slot);
  expect_refused();
}

TEST_F(SelfRestartingTest, ExitSignalHandlerSavesAndNoStepIsLost) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    for (const bool async : {false, true}) {
      if (async && signal != SIGTERM) continue;
      const std::string run = "run" + std::to_string(signal) + (async ? "async" : "");
      const std::vector<std::string> job =
          Job(run, {"--save-interval=100000", async ? "--async-save" : "--async-save=false"});
      const Process process(Command(1000000, job), root_);
      while (!process.Ended() && Losses(run).size() < 5) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      process.Kill(signal);
      const Result result = process.Wait();
      EXPECT_EQ(result.exit_code, 128 + (signal == SIGUSR1 ? SIGINT : signal)) << result.err;
      const auto steps = static_cast<int>(Losses(run).size());
      EXPECT_EQ(
          Newest(Checkpoints(run)),
          "step-" + std::string(8 - std::to_string(steps).size(), '0') + std::to_string(steps));
      const Result resumed = Run(steps + 2, job);
      EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
      EXPECT_THAT(resumed.out, HasSubstr("(step " + std::to_string(steps) + ")"));
      EXPECT_EQ(Losses(run).size(), static_cast<size_t>(steps + 2));
    }
  }
}

TEST_F(SelfRestartingTest, ExitSignalHandlerCanBeSwitchedOff) {
  const std::vector<std::string> job =
      Job("run", {"--save-interval=100000", "--exit-signal-handler=false"});
  const Process process(Command(1000000, job), root_);
  while (!process.Ended() && Losses("run").size() < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  process.Kill(SIGTERM);
  EXPECT_EQ(process.Wait().exit_code, 128 + SIGTERM);
  EXPECT_EQ(Newest(Checkpoints("run")), "");
}

TEST_F(SelfRestartingTest, StopFilePathSavesAndEndsAndIsNotObeyedTwice) {
  const fs::path stop_file = root_ / "stop";
  const std::vector<std::string> job =
      Job("run", {"--save-interval=100", "--stop-file-path=" + stop_file.string()});
  std::ofstream(stop_file) << "3\n";
  Result result = Run(10, job);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped by " + stop_file.string() + " after step 3"));
  EXPECT_EQ(Newest(Checkpoints("run")), "step-00000003");
  // Saves, and continues.
  std::ofstream(stop_file) << "-5";
  result = Run(8, job);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "step-00000005" / "manifest.pb"));
  EXPECT_EQ(Newest(Checkpoints("run")), "step-00000008");
  // Stale, then garbage, then missing.
  std::ofstream(stop_file) << "8";
  EXPECT_EQ(Run(10, job).exit_code, 0);
  EXPECT_EQ(Newest(Checkpoints("run")), "step-00000010");
  std::ofstream(stop_file) << "soon";
  result = Run(11, job);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("has no effect: expected an integer, not \"soon\""));
  fs::remove(stop_file);
  EXPECT_EQ(Run(12, job).exit_code, 0);
  ExpectUndisturbed("run", 12);
}

TEST_F(SelfRestartingTest, NonPersistentSaveIntervalKeepsTwoBesideThePermanentOnes) {
  const std::vector<std::string> job =
      Job("run", {"--save-interval=6", "--oss-snapshot-freq=2", "--exit-interval=11"});
  const Result result = Run(20, job);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const fs::path folder = Checkpoints("run");
  for (const char* there :
       {"step-00000006", "step-00000011", "rolling-0/step-00000008", "rolling-1/step-00000010"}) {
    EXPECT_TRUE(fs::exists(folder / there / "manifest.pb")) << there;
  }
  for (const char* replaced :
       {"rolling-0/step-00000002", "rolling-1/step-00000004", "rolling-0/step-00000006"}) {
    EXPECT_FALSE(fs::exists(folder / replaced)) << replaced;
  }
  // After a restart the older one is replaced.
  fs::remove_all(folder / "step-00000011");
  EXPECT_THAT(Run(13, job).out, HasSubstr("rolling-1/step-00000010 (step 10)"));
  EXPECT_TRUE(fs::exists(folder / "rolling-0" / "step-00000008"));
  EXPECT_TRUE(fs::exists(folder / "rolling-1" / "step-00000010"));
}

TEST_F(SelfRestartingTest, EnableSaveCkptFalseSavesNothingAndLoads) {
  ASSERT_EQ(Run(4, Job("run")).exit_code, 0);
  const Result result = Run(8, Job("run", {"--enable-save-ckpt=false"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("(step 4)"));
  EXPECT_EQ(Newest(Checkpoints("run")), "step-00000004");
}

TEST_F(SelfRestartingTest, RetentionPoliciesCombine) {
  const Result result = Run(12, Job("run", {"--checkpoint-every=1", "--save-interval=1",
                                            "--keep-latest-k=2", "--save-retain-interval=5"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> kept;
  for (const fs::directory_entry& entry : fs::directory_iterator(Checkpoints("run"))) {
    if (entry.is_directory()) kept.push_back(entry.path().filename());
  }
  EXPECT_THAT(kept, ::testing::UnorderedElementsAre("step-00000005", "step-00000010",
                                                    "step-00000011", "step-00000012"));
}

// Updates beyond all measure: losses are no numbers from then on.
TEST_F(SelfRestartingTest, DivergenceLeavesTheLastGoodCheckpointAndAWayBack) {
  const std::vector<std::string> keep = {"--max-checkpoint-keep=1",
                                         "--non-persistent-save-interval=0"};
  ASSERT_EQ(Run(4, Job("run", keep)).exit_code, 0);
  std::vector<std::string> broken = Job("run", keep);
  broken.push_back("--lr=1e30");
  // It ends before ten steps in a row have been skipped.
  Result result = Run(9, broken);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("training has diverged: the loss of step 9 is nan"));
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "step-00000004" / "manifest.pb"));
  EXPECT_FALSE(fs::exists(Checkpoints("run") / "step-00000006"));
  EXPECT_FALSE(fs::exists(Checkpoints("run") / "step-00000008"));
  EXPECT_EQ(Newest(Checkpoints("run")), "step-00000009");
  // On request: there is nothing left to train, but that is no success.
  std::vector<std::string> diverged = broken;
  diverged.push_back("--ckpt-step=9");
  result = Run(9, diverged);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("--ckpt-step"));
  EXPECT_TRUE(fs::exists(Checkpoints("run") / "step-00000009"));

  result = Run(9, Job("run", keep));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-00000004 (step 4)"));
  EXPECT_THAT(result.out,
              HasSubstr("WARNING: skipped " + (Checkpoints("run") / "step-00000009").string() +
                        ": the run had diverged at step 9: the loss was not plausible; it is now "
                        "called step-00000009.diverged"));
  ExpectUndisturbed("run", 9);
}

}  // namespace
}  // namespace tessera
