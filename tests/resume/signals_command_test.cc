// Hundreds of signals neither change a number of a run nor break it, whichever instructions its
// matrix products use.

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/cpu_level.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "trainer/app/signals.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Inner dimensions beyond 252, for which oneDNN's products without AVX-512 switch to another stack,
// and beyond 84, for which those with it do.
const Words kLongProducts = {"--seq-length=64", "--micro-batch-size=4"};
constexpr int kSignalledSteps = 20, kSignals = 100;

uint64_t Bits(const sigset_t& signals) {
  uint64_t bits = 0;
  for (int signal = 1; signal <= 64; ++signal) {
    if (sigismember(&signals, signal) == 1) bits |= uint64_t{1} << (signal - 1);
  }
  return bits;
}

// A signal mask from a thread's or a process's status, such as "SigBlk"; 0 if it no longer exists.
uint64_t SignalMask(const fs::path& status, const std::string& name) {
  for (const auto line : absl::StrSplit(ReadFile(status), '\n')) {
    uint64_t bits = 0;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(":\t"));
    if (words[0] == name && absl::SimpleHexAtoi(words.back(), &bits)) return bits;
  }
  return 0;
}

bool Catches(pid_t process, int signal) {
  const fs::path status = fs::path("/proc") / std::to_string(process) / "status";
  return (SignalMask(status, "SigCgt") >> (signal - 1) & 1) != 0;
}

// Programs have all instructions, as outside of tests: with AVX-512, oneDNN multiplies.
class SignalsCommandTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    if (!CpuLevelLimit().has_value()) unsetenv("TESSERA_CPU");
  }
  void TearDown() override {
    unsetenv("ONEDNN_MAX_CPU_ISA");
    unsetenv("LD_PRELOAD");
    unsetenv("SLOW_DISK_GATE");
    CommandTest::TearDown();
  }

  // By oneDNN's names; those beyond the processor's abilities have no effect.
  static Words InstructionSets() { return {"AVX2", "AVX512_CORE"}; }

  Words LongAlone(const std::string& run, const Words& flags) const {
    return Alone(Joined(Joined(kLongProducts, {"--run-dir=" + RunDir(run).string()}), flags));
  }

  std::map<int64_t, std::string> Undisturbed(const std::string& run) const {
    MustRun(LongAlone(run, {"--train-iters=" + std::to_string(kSignalledSteps)}));
    std::map<int64_t, std::string> losses = Losses(run);
    EXPECT_EQ(losses.size(), kSignalledSteps);
    return losses;
  }

  // Keeps sending the signal to the processes that catch it, until `process` has ended. Calls
  // `enough` when there were kSignals of them, and again and again from then on. Returns how many
  // there were.
  static int SendUntilTheEnd(const Process& process, const std::set<pid_t>& to, int signal,
                             const std::function<void()>& enough) {
    int sent = 0;
    while (!process.Ended()) {
      for (const pid_t one : to) {
        if (Catches(one, signal) && kill(one, signal) == 0) ++sent;
      }
      if (sent >= kSignals) enough();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return sent;
  }
  // Starts a run that signals stop, and that cannot end before OpenGate(): its last save waits.
  Process StartBehindGate(const std::string& run, const Words& command) const {
    setenv("LD_PRELOAD", Runfile("tests/resume/slow_disk.so").c_str(), 1);
    setenv("SLOW_DISK_GATE", Gate(run).c_str(), 1);
    Process process(command, root_);
    unsetenv("LD_PRELOAD");
    return process;
  }
  void OpenGate(const std::string& run) const { WriteFile(Gate(run), "open"); }
  fs::path Gate(const std::string& run) const { return root_ / (run + ".gate"); }

  // Its numbers equal those of the first steps of the undisturbed run.
  void ExpectBeginning(const std::string& run, const std::map<int64_t, std::string>& undisturbed) {
    const std::map<int64_t, std::string> losses = Losses(run);
    EXPECT_FALSE(losses.empty());
    for (const auto& [step, loss] : losses) {
      if (step <= kSignalledSteps) EXPECT_EQ(loss, undisturbed.at(step)) << "step " << step;
    }
  }

  // For a process that trains: one thread receives signals, the others block them.
  static void ExpectSignalsBlocked(pid_t process) {
    const uint64_t asynchronous = Bits(AsynchronousSignals()) & ~Bits(CannotBeBlocked());
    int receiving = 0, threads = 0;
    for (const fs::directory_entry& task :
         fs::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      const uint64_t blocked = SignalMask(task.path() / "status", "SigBlk");
      // A thread that has ended has no status.
      if (blocked == 0 && ReadFile(task.path() / "status").empty()) continue;
      ++threads;
      if ((blocked & asynchronous) == asynchronous) continue;
      ++receiving;
      EXPECT_EQ(blocked & asynchronous, 0u) << task.path();
    }
    EXPECT_EQ(receiving, 1);
    EXPECT_GE(threads, 3);
  }

 private:
  static sigset_t CannotBeBlocked() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGKILL);
    sigaddset(&signals, SIGSTOP);
    return signals;
  }
};

TEST_F(SignalsCommandTest, NoThreadThatComputesReceivesSignals) {
  const Words saving = {"--async-save", "--threads=2"};
  const Words parallel = {"--async-save", "--threads=2", "--data-parallel-size=2"};
  for (const bool several : {false, true}) {
    const std::string run = several ? "two" : "one";
    const Words flags = Saving(run, 1000000, several ? parallel : saving);
    const Process process(several ? Launcher(flags) : LongAlone(run, flags), root_);
    EXPECT_TRUE(process.WaitUntil([&] { return Steps(run).contains(2); }));
    for (int look = 0; look < 5; ++look) {
      for (int rank = 0; rank < (several ? 2 : 1); ++rank) {
        ExpectSignalsBlocked(several ? FindRank(rank) : process.pid());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    process.Kill(SIGTERM);
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  }
}

// The launcher passes no signal on as ignored; what a run ignores, it has chosen itself.
TEST_F(SignalsCommandTest, OnlyBrokenOutputAndFullFilesAreIgnored) {
  for (const bool several : {false, true}) {
    const std::string run = several ? "two" : "one";
    Words flags;
    if (several) flags.push_back("--data-parallel-size=2");
    const Process process(Launcher(Saving(run, 1000000, flags)), root_);
    EXPECT_TRUE(process.WaitUntil([&] { return Steps(run).contains(2); }));
    const pid_t rank = several ? FindRank(0) : process.pid();
    const fs::path status = fs::path("/proc") / std::to_string(rank) / "status";
    EXPECT_NE(SignalMask(status, "SigCgt"), 0u);
    const uint64_t ignored = uint64_t{1} << (SIGPIPE - 1) | uint64_t{1} << (SIGXFSZ - 1);
    const uint64_t of_the_c_library = uint64_t{3} << (32 - 1);
    EXPECT_EQ(SignalMask(status, "SigIgn") & ~of_the_c_library, ignored);
    process.Kill(SIGTERM);
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  }
}

// Runs a command in a terminal of its own, closes the terminal once a file has been written to, and
// repeats the hangup, as shells do. The disk is slow until two seconds later. Ends as the command.
constexpr char kInATerminalThatCloses[] = R"(
import os, pty, signal, sys, time
file, gate, *command = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(command[0], command)
while not os.path.exists(file) or os.path.getsize(file) == 0:
    os.read(terminal, 1 << 16)
os.close(terminal)
time.sleep(0.05)
os.kill(pid, signal.SIGHUP)
time.sleep(2)
open(gate, "w").close()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
)";

// One process and the launcher of two alike.
TEST_F(SignalsCommandTest, AClosedTerminalEndsARunAfterASaveUnlessNohupForbidsIt) {
  for (const std::string ranks : {"1", "2"}) {
    const Words command = Launcher(
        Saving(ranks, 1000000, {"--data-parallel-size=" + ranks, "--save-interval=1000000"}));
    const std::string records = (RunDir(ranks) / "metrics.jsonl").string();
    const std::string gate = (root_ / ("gate" + ranks)).string();
    setenv("TESSERA_MPIRUN_FLAGS",
           ("-x LD_PRELOAD=" + Runfile("tests/resume/slow_disk.so") + " -x SLOW_DISK_GATE=" + gate)
               .c_str(),
           1);
    const Result run =
        Run(Joined({"/usr/bin/python3", "-c", kInATerminalThatCloses, records, gate}, command));
    unsetenv("TESSERA_MPIRUN_FLAGS");
    EXPECT_EQ(run.exit_code, 128 + SIGTERM) << run.err;
    ASSERT_EQ(Steps(ranks).size(), 1u);
    const int64_t last = *Steps(ranks).rbegin();
    EXPECT_EQ(Records(ranks).back()["step"], last);
    const Process again(Joined({"/usr/bin/env", "--ignore-signal=HUP"}, command), root_);
    const auto has_recorded = [&](int64_t step) {
      const std::vector<nlohmann::json> records = Records(ranks);
      return !records.empty() && records.back()["step"] > step;
    };
    EXPECT_TRUE(again.WaitUntil([&] { return has_recorded(last); }));
    again.Kill(SIGHUP);
    const int64_t then = Records(ranks).back()["step"];
    EXPECT_TRUE(again.WaitUntil([&] { return has_recorded(then + 20); }));
    again.Kill(SIGTERM);
    EXPECT_EQ(again.Wait().exit_code, 128 + SIGTERM);
  }
}

TEST_F(SignalsCommandTest, AProfilerChangesNoNumber) {
  std::set<std::map<int64_t, std::string>> losses;
  for (const std::string& instructions : InstructionSets()) {
    SCOPED_TRACE(instructions);
    setenv("ONEDNN_MAX_CPU_ISA", instructions.c_str(), 1);
    const std::map<int64_t, std::string> undisturbed = Undisturbed("undisturbed" + instructions);
    const std::string run = "profiled" + instructions;
    setenv("LD_PRELOAD", Runfile("tests/resume/profiler.so").c_str(), 1);
    const Process process(LongAlone(run, {"--train-iters=1000000"}), root_);
    unsetenv("LD_PRELOAD");
    const int sent = SendUntilTheEnd(process, {process.pid()}, SIGPROF, [&] {
      if (RecordCount(run) >= kSignalledSteps) process.Kill(SIGUSR2);
    });
    EXPECT_GE(sent, kSignals);
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
    ExpectBeginning(run, undisturbed);
    losses.insert(undisturbed);
  }
  if (EffectiveCpuLevel() == CpuLevel::kAvx512) {
    EXPECT_EQ(losses.size(), InstructionSets().size()) << "the products are not oneDNN's";
  }
}

TEST_F(SignalsCommandTest, StopSignalsOnAndOn) {
  for (const std::string& instructions : InstructionSets()) {
    SCOPED_TRACE(instructions);
    setenv("ONEDNN_MAX_CPU_ISA", instructions.c_str(), 1);
    const std::map<int64_t, std::string> undisturbed = Undisturbed("undisturbed" + instructions);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const bool at_start = attempt % 2 == 0;
      const std::string run = "stopped" + instructions + std::to_string(attempt);
      const Process process =
          StartBehindGate(run, LongAlone(run, Saving(run, 1000000, {"--save-interval=1000000"})));
      if (!at_start) process.WaitUntil([&] { return RecordCount(run) > 0; });
      const int signal = at_start ? SIGUSR1 : SIGUSR2;
      EXPECT_GE(SendUntilTheEnd(process, {process.pid()}, signal, [&] { OpenGate(run); }),
                kSignals);
      const int meant = signal == SIGUSR1 ? SIGINT : SIGTERM;
      const Result result = process.Wait();
      EXPECT_EQ(result.exit_code, 128 + meant) << result.err;
      EXPECT_THAT(result.out, HasSubstr("stopped by signal " + std::to_string(meant)));
      ExpectBeginning(run, undisturbed);
    }
  }
}

// Sent directly to the ranks instead of mpirun, also while MPI starts.
TEST_F(SignalsCommandTest, StopSignalsToRanks) {
  for (const std::string& instructions : InstructionSets()) {
    SCOPED_TRACE(instructions);
    setenv("ONEDNN_MAX_CPU_ISA", instructions.c_str(), 1);
    const std::string run = "stopped" + instructions;
    const Words flags = {"--data-parallel-size=2", "--save-interval=1000000"};
    const Process process =
        StartBehindGate(run, Mpirun(2, Joined(kLongProducts, Saving(run, 1000000, flags))));
    std::set<pid_t> ranks;
    while (ranks.size() < 2 && !process.Ended()) {
      ranks = {FindRank(0), FindRank(1)};
      ranks.erase(-1);
    }
    EXPECT_GE(SendUntilTheEnd(process, ranks, SIGUSR1, [&] { OpenGate(run); }), kSignals);
    const Result result = process.Wait();
    EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped by signal " + std::to_string(SIGINT)));
  }
}

// To one rank of two. The step is saved at once, and the next process makes the evaluation.
TEST_F(SignalsCommandTest, AnEvaluationStopsAtASignal) {
  const std::string valid = (root_ / "valid.bin").string();
  WriteRandomTokens(valid, /*vocabulary=*/100, /*count=*/2'000'000);
  const auto command = [&](const std::string& run, const std::string& iterations) {
    return Launcher(
        Saving(run, 3,
               {"--data-parallel-size=2", "--valid-data-path=" + valid, "--eval-interval=2",
                "--eval-iters=" + iterations, "--save-interval=100"}));
  };
  const auto evaluations = [&](const std::string& run) {
    std::vector<std::string> bits;
    for (const nlohmann::json& record : Records(run)) {
      if (record["kind"] == "eval") bits.push_back(record["eval_loss_bits"]);
    }
    return bits;
  };
  MustRun(command("whole", "10"));
  const Process process(command("run", "1000000"), root_);  // over all of the data
  EXPECT_TRUE(process.WaitUntil([&] { return RecordCount("run") == 2; }));
  kill(FindRank(1), SIGTERM);
  const Result result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped by signal 15 after step 2"));
  EXPECT_EQ(RecordCount("run"), 2);
  EXPECT_EQ(Steps("run"), (std::set<int64_t>{2}));
  MustRun(command("run", "10"));
  EXPECT_EQ(evaluations("whole").size(), 1);
  EXPECT_EQ(evaluations("run"), evaluations("whole"));
  EXPECT_EQ(Losses("run"), Losses("whole"));
}

}  // namespace
}  // namespace tessera
