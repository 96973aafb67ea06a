// What a machine and its other users do to a run: output without a reader, limits of files and of
// memory, files that are deleted, replaced or no files at all, names with commas.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLastCode[] = "; exit ${PIPESTATUS[0]}";

class MachineCommandTest : public CommandTest {
 protected:
  static std::string Quoted(const Words& command) {
    std::string text;
    for (const std::string& word : command) text += " '" + word + "'";
    return text;
  }
  // The command, between two texts of the shell.
  Result Shell(const std::string& before, const Words& command, const std::string& after) const {
    return Run({"/bin/bash", "-c", before + Quoted(command) + after});
  }
  // The same, which has to end within a time that none of the commands here needs.
  Result Bounded(const Words& command) const {
    const Result result = Run(Joined({"/usr/bin/timeout", "--kill-after=1", "60"}, command));
    EXPECT_THAT(result.exit_code, Not(AnyOf(124, 137))) << Quoted(command) << " waits for ever";
    return result;
  }
};

TEST_F(MachineCommandTest, ARunGoesOnWhenNobodyReadsItsOutput) {
  const std::string readers[] = {" | head -n 3", " 2>&1 | true", " 2> >(true) | head -n 1",
                                 " > >(head -n 5) 2>&1"};
  MustTrain("undisturbed", 30);
  int i = 0;
  for (const std::string& reader : readers) {
    const std::string run = "run" + std::to_string(i++);
    const Result result =
        Shell("", Alone(Saving(run, 30, {"--save-interval=10"})), reader + kLastCode);
    EXPECT_EQ(result.exit_code, 0) << reader << result.err;
    EXPECT_EQ(Losses(run), Losses("undisturbed")) << reader;
    EXPECT_THAT(Steps(run), ElementsAre(10, 20, 30)) << reader;
  }
}

TEST_F(MachineCommandTest, SeveralProcessesGoOnWhenNobodyReadsTheirOutput) {
  const Words two = {"--data-parallel-size=2", "--save-interval=20"};
  for (const std::string reader : {" | head -n 2", " 2>&1 | head -n 2"}) {
    fs::remove_all(RunDir("run"));
    const Result result = Shell("", Launcher(Saving("run", 60, two)), reader + kLastCode);
    EXPECT_EQ(result.exit_code, 0) << reader << result.out << result.err;
    EXPECT_THAT(Steps("run"), ElementsAre(20, 40, 60)) << reader;
    EXPECT_EQ(Losses("run").size(), 60u) << reader;
  }
}

// The product of these is what they print.
TEST_F(MachineCommandTest, CommandsWithoutAReaderEndQuietly) {
  MustTrain("run", 4);
  const std::string run = RunDir("run");
  const Words commands[] = {
      {Runfile("tools/ckpt/ckpt"), "help"},
      {Runfile("tools/ckpt/ckpt"), "inspect", StepDir("run", 4)},
      {Runfile("tools/ckpt/ckpt"), "verify", Checkpoints("run"), "--all"},
      {Runfile("tools/compare_runs/compare_runs"), run, run},
  };
  for (const Words& command : commands) {
    const Result result = Shell("", command, " | true" + std::string(kLastCode));
    EXPECT_EQ(result.err, "") << Quoted(command);
    // The reader may be there until it is too late.
    EXPECT_THAT(result.exit_code, AnyOf(0, 128 + SIGPIPE)) << Quoted(command);
    const Result full = Shell("", command, " > /dev/full");
    EXPECT_EQ(full.exit_code, 2) << Quoted(command);
    EXPECT_THAT(full.err, HasSubstr("the output is lost: cannot write to stdout: No space left"));
  }
}

// As on a full disk, the run saves what it has, where that fits, and ends.
TEST_F(MachineCommandTest, AFileThatMayNotGrowEndsTheRunWithASentence) {
  const Result result = Shell(
      "ulimit -f 64;", Alone({"--train-iters=100000", "--run-dir=" + RunDir("run").string()}), "");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("metrics.jsonl: File too large"), Not(HasSubstr("@"))));
  EXPECT_GT(RecordCount("run"), 50);

  const Result saving = Shell("ulimit -f 64;", Alone(Saving("saving", 8)), "");
  EXPECT_EQ(saving.exit_code, 1) << saving.err;
  EXPECT_THAT(saving.err, HasSubstr("File too large"));
  EXPECT_EQ(Lines(saving.err), 1) << saving.err;
}

// Allocations from the first one to those of saves in the background fail.
TEST_F(MachineCommandTest, MissingMemoryIsASentence) {
  setenv("LD_PRELOAD", Runfile("tests/resume/no_memory.so").c_str(), 1);
  int failed = 0;
  for (long after = 1; after < 100'000; after *= 2) {
    fs::remove_all(RunDir("run"));
    setenv("NO_MEMORY_AFTER", std::to_string(after).c_str(), 1);
    const Result result = Train("run", 6, {"--async-save", "--save-interval=1"});
    if (result.exit_code == 0) continue;  // there were no more allocations, or no check after them
    ++failed;
    EXPECT_EQ(result.exit_code, 1) << after << result.err;
    EXPECT_EQ(Lines(result.err), 1) << after << result.err;
    EXPECT_THAT(result.err, HasSubstr("not enough memory to ")) << after;
  }
  unsetenv("LD_PRELOAD");
  unsetenv("NO_MEMORY_AFTER");
  EXPECT_GT(failed, 6);
}

// The limit of the memory itself: whatever a run of this size has not got.
TEST_F(MachineCommandTest, MissingMemoryForTheModelIsASentence) {
  const Result result =
      Shell("ulimit -v 2000000;", Alone({"--train-iters=1", "--num-layers=4000"}), "");
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("not enough memory to begin the run: cannot allocate "));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
}

// The second run finds the folder taken, whether or not the lock file is there. Each pair of a run
// that saves or only records, and another one, is there at the same time.
TEST_F(MachineCommandTest, ASecondRunTouchesNothingOfTheFirst) {
  constexpr int kPairs = 4;
  const auto name = [](int pair) { return "run" + std::to_string(pair); };
  const auto start = [&](int pair, bool saves, const std::string& scratch) {
    const Words flags =
        saves ? Saving(name(pair), 100000, {"--save-interval=100"})
              : Words{"--train-iters=100000", "--run-dir=" + RunDir(name(pair)).string()};
    return Process(Alone(flags), root_ / (scratch + std::to_string(pair)));
  };
  std::vector<Process> first, second;
  for (int i = 0; i < kPairs; ++i) {
    first.push_back(start(i, i % 2 == 0, "first"));
    EXPECT_TRUE(first[i].WaitUntil([&] { return RecordCount(name(i)) >= 20; }));
    first[i].Kill(SIGSTOP);  // the other one waits for ten seconds
    fs::remove(RunDir(name(i)) / ".lock");
    fs::remove(Checkpoints(name(i)) / ".lock");
    second.push_back(start(i, i / 2 == 0, "second"));
    // The first run continues while the other one waits.
    const fs::path output = root_ / ("second" + std::to_string(i)) / "stdout";
    EXPECT_TRUE(second[i].WaitUntil([&] { return Count(ReadFile(output), "waiting up to ") > 0; }));
    const int64_t before = RecordCount(name(i));
    first[i].Kill(SIGCONT);
    EXPECT_TRUE(first[i].WaitUntil([&] { return RecordCount(name(i)) >= before + 20; }));
    first[i].Kill(SIGSTOP);
  }
  for (int i = 0; i < kPairs; ++i) {
    const Result refused = second[i].Wait();
    EXPECT_EQ(refused.exit_code, 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(" is in use: another process saves there"));
    const int64_t before = RecordCount(name(i));
    first[i].Kill(SIGCONT);
    EXPECT_TRUE(first[i].WaitUntil([&] { return RecordCount(name(i)) >= before + 20; }));
    first[i].Kill(SIGTERM);
    const Result result = first[i].Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
    const std::map<int64_t, std::string> losses = Losses(name(i));
    EXPECT_EQ(losses.begin()->first, 1);
    EXPECT_EQ(losses.rbegin()->first, static_cast<int64_t>(losses.size()));
  }
}

// Whatever has taken its place, the run does not write to a file that nobody will find.
TEST_F(MachineCommandTest, ARunWhoseRecordsAreTakenAwaySavesAndEnds) {
  for (const bool replaced : {false, true}) {
    fs::remove_all(RunDir("run"));
    const Process process(Alone(Saving("run", 100000, {"--save-interval=100000"})), root_);
    const fs::path records = RunDir("run") / "metrics.jsonl";
    EXPECT_TRUE(process.WaitUntil([&] { return RecordCount("run") >= 20; }));
    fs::rename(records, RunDir("run") / "old");
    if (replaced) WriteFile(records, "theirs\n");
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("metrics.jsonl is not this run's file any more"));
    EXPECT_EQ(Lines(result.err), 1) << result.err;
    EXPECT_EQ(ReadFile(records), replaced ? "theirs\n" : "");
    EXPECT_EQ(*Steps("run").rbegin(), Lines(ReadFile(RunDir("run") / "old")) + 2);
  }
}

// One file of a run after the other is replaced by a pipe to which nobody writes, or by a device
// that never ends. The two alternate from command to command. The seed chooses which is first, and
// whether the run that is started again has ended.
TEST_F(MachineCommandTest, NoFileOfARunIsWaitedForForEver) {
  const uint64_t seed = TestSeed();
  MustTrain("run", 4, {"--save-interval=4"});
  Run({Runfile("trainer/tools/report"), RunDir("run")});
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(RunDir("run"))) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  ASSERT_GT(files.size(), 8u);
  for (const char* name : {"run.textproto", "tokens.bin", "stop"}) files.push_back(root_ / name);
  files.push_back(root_ / "tokens.bin.crc");
  const std::string ckpt = Runfile("tools/ckpt/ckpt"), run = RunDir("run");
  const std::string step = StepDir("run", 4);
  const Words commands[] = {
      Alone(Saving("run", seed / 2 % 2 == 0 ? 5 : 4,
                   {"--stop-file-path=" + (root_ / "stop").string()})),
      {ckpt, "ls", Checkpoints("run")},
      {ckpt, "verify", step},
      {ckpt, "inspect", step},
      {ckpt, "convert", step, (root_ / "converted").string(), "--to=hf"},
      {Runfile("trainer/tools/report"), run},
      {Runfile("tools/compare_runs/compare_runs"), run, run},
  };
  uint64_t trials = 0;
  const fs::path saved = root_ / "saved";
  fs::copy(RunDir("run"), saved, fs::copy_options::recursive);
  const auto restore = [&] {
    fs::remove_all(RunDir("run"));
    fs::copy(saved, RunDir("run"), fs::copy_options::recursive);
  };
  for (const fs::path& file : files) {
    const fs::path kept = root_ / "kept";
    const bool was_there = fs::exists(file);
    if (was_there) fs::copy_file(file, kept, fs::copy_options::overwrite_existing);
    for (const Words& command : commands) {
      restore();
      fs::remove(file);
      const bool is_pipe = (trials + seed) % 2 == 0;  // there is an odd number of commands
      if (is_pipe) {
        ASSERT_EQ(mkfifo(file.c_str(), 0600), 0) << file;
      } else {
        fs::create_symlink("/dev/zero", file);
      }
      SCOPED_TRACE(file.string() + (is_pipe ? ": a pipe" : ": /dev/zero"));
      const Result result = Bounded(command);
      EXPECT_LT(result.exit_code, 128) << Quoted(command) << result.err;
      fs::remove_all(root_ / "converted");
      fs::remove(file);
      ++trials;
    }
    if (was_there) fs::copy_file(kept, file, fs::copy_options::overwrite_existing);
  }
  RecordProperty("trials", static_cast<int>(trials));
}

TEST_F(MachineCommandTest, PrepareDataTakesASwitchWithoutAValueAndANameWithAComma) {
  const Words command = {Runfile("trainer/data/prepare_data"), "--input=" + Tokens(),
                         "--output_dir=" + (root_ / "data").string(), "--tokenizer=byte"};
  EXPECT_THAT(MustRun(Joined(command, {"--begin_of_text", "--threads=1"}), 2).err,
              HasSubstr("begin_of_text is true: expected false"));
  EXPECT_THAT(MustRun(Joined(command, {"--threads", "--begin_of_text"}), 2).err,
              HasSubstr("--threads has no value"));
  // One name, unless its parts are names, too.
  const std::string text = root_.string() + "/a," + root_.string() + "/b.txt";
  fs::create_directories(fs::path(text).parent_path());
  WriteFile(text, "a text\n");
  MustRun(Joined(command, {"--input=" + text}));
  for (const char* name : {"a", "b.txt"}) WriteFile(root_ / name, "another text\n");
  EXPECT_THAT(MustRun(Joined(command, {"--input=" + text})).out,
              Not(HasSubstr("already up to date")));
}

}  // namespace
}  // namespace tessera
