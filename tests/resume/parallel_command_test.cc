// Runs of several processes from the user's point of view, started by the launcher or by mpirun
// itself.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <thread>
#include <utility>

#include "base/cpu_level.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kFour = {"--data-parallel-size=2", "--zero-stage=2", "--tensor-model-parallel-size=2"};

// Removes what Open MPI prints about reads from a process that no longer exists, in a rank that was
// stopped and continues for a moment while the launcher ends it: "[host:1234] Read -1, ...".
std::string WithoutOpenMpi(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\[[^\]\n]*:[0-9]+\] Read -1, expected [^\n]*\n)"),
                            "");
}

class ParallelCommandTest : public CommandTest {
 protected:
  // Every record of a run without its timings, by kind and step.
  std::map<std::string, std::string> Results(const std::string& run) const {
    std::map<std::string, std::string> results;
    for (const nlohmann::json& record : Records(run)) {
      results[record["kind"].get<std::string>() + " " + record["step"].dump()] =
          record["kind"] == "step" ? record["loss_bits"].dump() + " " + record["grad_norm"].dump() +
                                         " " + record["ledger"].dump()
                                   : record["eval_loss_bits"].dump();
    }
    return results;
  }
  // Whether the run has committed this checkpoint; the process is killed where it has not.
  bool HasSaved(const Process& process, const std::string& run, int64_t step) const {
    const fs::path manifest = StepDir(run, step) / "manifest.pb";
    if (process.WaitUntil([&] { return fs::exists(manifest); })) return true;
    process.Kill(SIGKILL);
    ADD_FAILURE() << "no checkpoint of step " << step << ": " << process.Wait().err;
    return false;
  }
};

TEST_F(ParallelCommandTest, WrongSettingsAreAnsweredOnce) {
  // Reported by the launcher, before any process starts.
  Result result = MustRun(Launcher({"--train-iters=2", "--data-parallel-size=2", "--lrr=1"}), 2);
  EXPECT_EQ(result.err, "train: unknown flag --lrr; did you mean --lr?\n");
  result = MustRun(Launcher({"--hostfile=/nowhere/hosts"}), 2);
  EXPECT_THAT(result.err, HasSubstr("/nowhere/hosts"));

  // Reported by one of the processes.
  result = MustRun(Mpirun(4, {"--train-iters=2", "--lrr=1"}), 2);
  EXPECT_EQ(result.err, "train: unknown flag --lrr; did you mean --lr?\n");
}

TEST_F(ParallelCommandTest, AnotherNumberOfProcessesIsAnsweredByTheRightOne) {
  Result result = MustRun(Mpirun(2, {"--train-iters=2", "--data-parallel-size=4"}), 2);
  EXPECT_THAT(result.err, HasSubstr("needs 4 processes, but 2 were started: use mpirun -n 4"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  result = MustRun(
      {Runfile("trainer/app/train"), Config(), "--train-iters=2", "--data-parallel-size=4"}, 2);
  EXPECT_THAT(result.err, HasSubstr("needs 4 processes, but 1 was started: use mpirun -n 4"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
}

TEST_F(ParallelCommandTest, AnErrorEndsAllProcessesAndIsSaidOnce) {
  std::ofstream(root_ / "tokens.bin", std::ios::trunc) << "no tokens";
  const Result result = MustRun(Mpirun(2, {"--train-iters=2", "--data-parallel-size=2"}), 1);
  EXPECT_THAT(result.err, HasSubstr("tokens.bin"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
}

TEST_F(ParallelCommandTest, AResumeOnAnotherProcessorSaysSoInFastNumerics) {
  if (EffectiveCpuLevel() < CpuLevel::kAvx2) GTEST_SKIP() << "no other set (needs: avx2)";
  MustTrain("run", 2, {});
  const Result result =
      MustRun(Joined({"/usr/bin/env", "TESSERA_CPU=sse4"}, Alone(Saving("run", 4, {}))));
  EXPECT_THAT(result.out, HasSubstr("saved where numbers are computed otherwise "));
  EXPECT_THAT(result.out, HasSubstr("the bits of later losses differ from the saved run's"));
}

TEST_F(ParallelCommandTest, OneRankSpeaksAndTheOthersLog) {
  Words flags = Saving("run", 4, kFour);
  flags.insert(flags.end(), {"--export-llmc=" + (root_ / "model.bin").string()});
  const Result result = MustRun(Launcher(flags));
  for (int step = 1; step <= 4; ++step) {
    const std::string line = "step " + std::to_string(step) + "/4 ";
    const size_t first = result.out.find(line);
    EXPECT_NE(first, std::string::npos) << result.out;
    EXPECT_EQ(result.out.find(line, first + 1), std::string::npos) << "printed twice: " << line;
  }
  EXPECT_THAT(result.out, HasSubstr(" wire | "));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b"))) << "a file is no terminal";
  EXPECT_THAT(result.err, HasSubstr("train: 4 processes"));
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  for (const char* log : {"rank-00001.log", "rank-00002.log", "rank-00003.log"}) {
    EXPECT_THAT(ReadFile(root_ / "run" / log), HasSubstr("step 4/4")) << log;
  }
  EXPECT_FALSE(fs::exists(root_ / "run" / "rank-00000.log"));
  EXPECT_TRUE(fs::exists(root_ / "run" / "config.textproto"));
  EXPECT_TRUE(fs::exists(root_ / "model.bin"));
  const nlohmann::json record = Records("run").at(0);
  EXPECT_GT(record["wire"]["dp"]["reduce-scatter"], 0);
  EXPECT_GT(record["wire"]["tp"]["all-reduce"], 0);
}

TEST_F(ParallelCommandTest, AHostFileSaysWhereTheProcessesGo) {
  WriteFile(root_ / "hosts", "localhost slots=2\n");
  const Result result = MustRun(Launcher(
      {"--train-iters=2", "--data-parallel-size=2", "--hostfile=" + (root_ / "hosts").string()}));
  EXPECT_THAT(result.err, HasSubstr("--hostfile"));
  EXPECT_THAT(result.out, HasSubstr("step 2/2"));
}

// mpirun accepts signals before it has ranks to forward them to, and ranks start at different
// times.
TEST_F(ParallelCommandTest, StopSignalsAreNotLostWhileRanksStart) {
  for (const int milliseconds : {0, 300}) {
    fs::remove(root_ / "stderr");
    const Process process(Launcher({"--train-iters=1000000", "--data-parallel-size=2"}), root_);
    ASSERT_TRUE(
        process.WaitUntil([&] { return Count(ReadFile(root_ / "stderr"), "2 processes") > 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    process.Kill(SIGTERM);
    const Result result = process.Wait();  // hangs if the signal is lost
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
    EXPECT_LE(Lines(result.err), 1) << result.err;
  }
}

// A scheduler that restarts a job which has ended with 128 + signal relies on its checkpoint.
TEST_F(ParallelCommandTest, AStopWhoseSaveFailsIsAFailure) {
  const Process process(
      Launcher(Saving("run", 1000000, {"--data-parallel-size=2", "--save-interval=1000000"})),
      root_);
  ASSERT_TRUE(process.WaitUntil([&] { return RecordCount("run") > 1; }));
  fs::remove_all(Checkpoints("run"));
  WriteFile(Checkpoints("run"), "no folder");
  process.Kill(SIGTERM);
  const Result result = process.Wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr(Checkpoints("run").string()));
}

// Only the rank that reads the byte sees the damage. The message names the place and a remedy,
// once; a run that resumes by itself discards what all ranks have loaded and continues from the
// checkpoint before, under another topology too.
TEST_F(ParallelCommandTest, DamageThatOneRankFindsIsNamedOnceAndSkippedByAll) {
  ASSERT_EQ(Run(Launcher(Saving("run", 4, {"--data-parallel-size=2"}))).exit_code, 0);
  const fs::path step = StepDir("run", 4);
  const fs::path file = DataFile(step, "model-00001-of-00002");
  FlipBit(file, 5000);
  Result result =
      MustRun(Launcher({"--train-iters=5", "--pipeline-model-parallel-size=2", Load("run")}), 1);
  EXPECT_THAT(result.err, HasSubstr(file.string() + " at offset 5000: tensor "));
  EXPECT_THAT(result.err, HasSubstr("--ckpt-step=3 resumes from the checkpoint before"));
  EXPECT_EQ(Lines(result.err), 2) << "the launcher's line and one rank's: " << result.err;

  result = MustRun(Launcher(Saving("run", 6, {"--pipeline-model-parallel-size=2"})));
  EXPECT_THAT(result.out, HasSubstr("skipped " + step.string() + ": "));
  EXPECT_THAT(result.out, HasSubstr("at offset 5000: tensor "));
  EXPECT_THAT(result.out, HasSubstr("step-00000003 (step 3)"));  // a rolling one
  EXPECT_TRUE(fs::exists(step.string() + ".damaged"));
  EXPECT_EQ(Losses("run").size(), 6u);
}

// The launcher is killed, as by the system when memory runs out. Its ranks end a moment later; a
// job that restarts at once waits for them.
TEST_F(ParallelCommandTest, ARestartWaitsForTheProcessesOfItsPredecessor) {
  Words job = Saving("run", 1000000, {"--data-parallel-size=2"});
  {
    const Process process(Mpirun(2, job), root_);
    if (!HasSaved(process, "run", 2)) return;
    process.Kill(SIGKILL);
    process.Wait();
  }
  job.push_back("--exit-duration-in-mins=0.01");
  const Result result = MustRun(Launcher(job));
  EXPECT_THAT(result.out, HasSubstr("(step "));
  EXPECT_THAT(result.out, HasSubstr("exit_duration_in_mins=0.01 has passed"));
}

// The shipped settings: sixteen processes compute the losses and weights of one process, bit for
// bit; their ledgers, of which one was interrupted, and their records of the last save are equal.
TEST_F(ParallelCommandTest, SixteenProcessesComputeWhatOneDoes) {
  const Words flags = {
      "--train-iters=8",     "--lr-warmup-iters=2",           "--numerics=exact",
      "--exact-tp-shards=2", "--train-data-path=" + Tokens(), "--valid-data-path=" + Tokens(),
      "--eval-interval=4"};
  for (const std::string name : {"single", "dp4_zero2_tp2_pp2"}) {
    Words command = Launcher(flags);
    command[4] = Runfile("trainer/configs/" + name + ".textproto");
    command.push_back("--run-dir=" + (root_ / name).string());
    command.push_back("--export-llmc=" + (root_ / name / "model.bin").string());
    // Started twice, it continues.
    if (name == "single") {
      Words part = command;
      part.push_back("--exit-interval=4");
      const Result first = Run(part);
      ASSERT_EQ(first.exit_code, 0) << name << ": " << first.err;
    }
    const Result result = Run(command);
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
    EXPECT_EQ(result.out.find("(step 4)") != std::string::npos, name == "single");
  }
  const std::map<std::string, std::string> one = Results("single");
  EXPECT_EQ(one.size(), 10u);
  EXPECT_EQ(Results("dp4_zero2_tp2_pp2"), one);
  EXPECT_THAT(one.at("step 8"), Not(HasSubstr("null")));
  const auto last_save = [&](const std::string& run) {
    const std::string saves = ReadFile(root_ / run / "saves.jsonl");
    return nlohmann::json::parse(saves.substr(saves.rfind('\n', saves.size() - 2) + 1));
  };
  EXPECT_EQ(last_save("single")["step"], 8);
  EXPECT_EQ(last_save("dp4_zero2_tp2_pp2"), last_save("single"));
  EXPECT_TRUE(ReadFile(root_ / "dp4_zero2_tp2_pp2" / "model.bin") ==
              ReadFile(root_ / "single" / "model.bin"));
}

// A config that names no data trains on a text of the system, which is prepared once.
TEST_F(ParallelCommandTest, SettingsWithoutDataGetSome) {
  const bool has_text = std::ranges::any_of(
      fs::directory_iterator("/usr/share/perl"), [](const fs::directory_entry& version) {
        return fs::exists(version.path() / "pod" / "perlretut.pod");
      });
  ASSERT_TRUE(has_text) << "the package perl-doc, which third_party/packages.txt names, is missing";
  setenv("TESSERA_DATA_DIR", (root_ / "data").c_str(), 1);
  Words command = Launcher({"--train-iters=2", "--lr-warmup-iters=1", "--prompt=The",
                            "--num-tokens-to-generate=5", "--run-dir=" + (root_ / "run").string()});
  command[4] = Runfile("trainer/configs/dp2.textproto");
  const Result first = MustRun(command);
  EXPECT_THAT(first.err, HasSubstr("preparing the text"));
  EXPECT_THAT(first.out, HasSubstr("step 2/2"));
  const Result second = MustRun(command);
  EXPECT_THAT(second.err, Not(HasSubstr("preparing")));
  EXPECT_THAT(second.out, HasSubstr("\nThe"));

  // Decoding has the same bits on another topology and another processor.
  command = Joined({"/usr/bin/env", ""}, command);
  command.insert(command.end(),
                 {"--numerics=exact", "--exact-tp-shards=2", "--print-log-probabilities", "", ""});
  std::string expected;
  for (const auto& [environment, topology] :
       {std::pair("TESSERA_CPU=avx2", "single"), std::pair("TESSERA_CPU=avx512", "tp2")}) {
    command[1] = environment;
    command.back() = std::string("--topology=") + topology;
    *(command.end() - 2) = "--run-dir=" + (root_ / topology).string();
    const Result result = MustRun(command);
    const std::string lines = result.out.substr(result.out.find("\nThe") + 1);
    EXPECT_EQ(Count(lines, "\t-"), 5) << result.out;
    if (expected.empty()) expected = lines;
    EXPECT_EQ(lines, expected);
  }
  unsetenv("TESSERA_DATA_DIR");
}

// A hanging process is waited for as long as the setting allows, and named.
TEST_F(ParallelCommandTest, AHangingRankIsNamed) {
  // Nothing is saved: no rank waits for a disk.
  const Process process(
      Launcher(Joined(kFour, {"--train-iters=1000000", "--run-dir=" + RunDir("run").string(),
                              "--distributed-timeout-minutes=0.05"})),
      root_);
  ASSERT_TRUE(process.WaitUntil([&] { return RecordCount("run") >= 2; }));
  const pid_t victim = FindRank(2);
  ASSERT_GT(victim, 0);
  kill(victim, SIGSTOP);
  const Result result = process.Wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, ContainsRegex("is not complete after [0-9]{1,2}\\.[0-9] s"));
  EXPECT_THAT(result.err, HasSubstr("rank 2"));
  EXPECT_THAT(result.err, HasSubstr("its process is stopped"));
  EXPECT_EQ(Lines(WithoutOpenMpi(result.err)), 2)
      << "the launcher's line and one rank's: " << result.err;
}

// Then the others end, and save nothing.
TEST_F(ParallelCommandTest, AKilledRankIsNamed) {
  const Words job = Saving("run", 1000000, Joined(kFour, {"--save-on-exception"}));
  const Process process(Launcher(job), root_);
  if (!HasSaved(process, "run", 2)) return;
  const pid_t victim = FindRank(2);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const Result result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("rank 2 on "));
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(result.out, HasSubstr("nothing is saved (--save-on-exception)"));
  for (const int64_t step : Steps("run")) EXPECT_EQ(step % 2, 0) << "not by the interval";
}

}  // namespace
}  // namespace tessera
