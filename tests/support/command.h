#ifndef TESSERA_TESTS_SUPPORT_COMMAND_H_
#define TESSERA_TESTS_SUPPORT_COMMAND_H_

// Runs the programs as a user does: alone, through the launcher of `bazel run`, or under mpirun.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {

using Words = std::vector<std::string>;
Words Joined(Words words, const Words& more);

// Returns the contents of a file; empty if it cannot be read.
std::string ReadFile(const std::filesystem::path& path);
// Writes a file, or writes it anew.
void WriteFile(const std::filesystem::path& path, std::string_view contents);
int64_t Lines(const std::string& text);
// Returns how often `part` occurs in `text`.
int Count(const std::string& text, const std::string& part);
// Returns the path of a data dependency.
std::string Runfile(const std::string& path);

// Returns the data file of a checkpoint whose name begins with `start`; empty without one. The
// rest of the name identifies the save's attempt, which no test knows.
std::filesystem::path DataFile(const std::filesystem::path& checkpoint, const std::string& start);
// Returns the file of another checkpoint whose name differs from `file` only in the attempt.
std::filesystem::path Counterpart(const std::filesystem::path& file,
                                  const std::filesystem::path& checkpoint);
// Flips a bit of the byte at `offset`, which counts from the end if it is negative.
void FlipBit(const std::filesystem::path& file, int64_t offset);
// Returns the sum of the sizes of all files below a folder.
int64_t TreeBytes(const std::filesystem::path& folder);

// Writes a token file of random ids below `vocabulary`.
void WriteRandomTokens(const std::filesystem::path& path, int vocabulary, int count);

struct Result {
  int exit_code = 0;  // 128 + signal after a death by signal
  std::string out;
  std::string err;
};

// A running command, whose output goes to files in `scratch`. Open MPI's files are there, too:
// their usual names contain a process id, which tests in process id namespaces of their own can
// have in common.
class Process {
 public:
  Process(const Words& command, const std::filesystem::path& scratch);

  pid_t pid() const { return pid_; }
  void Kill(int signal) const;
  // Returns whether the process has ended. Valid until Wait().
  bool Ended() const;
  // Expects that the process ends before Bazel ends the test. Kills it if it does not, and tells
  // what it waits for.
  Result Wait() const;
  // Waits until the condition holds, the process has ended, or Bazel is about to end the test;
  // returns whether the condition holds.
  template <typename Condition>
  bool WaitUntil(const Condition& condition) const {
    while (!condition() && IsInTime() && !Ended()) SleepTwoMilliseconds();
    return condition();
  }

 private:
  static bool IsInTime();
  static void SleepTwoMilliseconds();

  std::filesystem::path out_;
  std::filesystem::path err_;
  pid_t pid_ = -1;
};

// Trains a tiny GPT-2 on random tokens with processes. Every run has a folder of its own below the
// test's folder, with its records and its checkpoints.
class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override;

  // Settings of every run in text format; SetUp() writes these for a GPT-2 of 100 ids.
  void WriteSettings(const std::string& model, int seq_length = 32, const std::string& more = "",
                     const std::string& tokens = "tokens.bin") const;
  std::string Config() const { return "--config=" + (root_ / "run.textproto").string(); }

  std::filesystem::path RunDir(const std::string& run) const { return root_ / run; }
  std::filesystem::path Checkpoints(const std::string& run) const;
  std::filesystem::path StepDir(const std::string& run, int64_t step) const;
  std::string Load(const std::string& run) const { return "--load=" + Checkpoints(run).string(); }
  std::string Tokens() const { return (root_ / "tokens.bin").string(); }
  // Returns `flags` and the flags of a run of `steps` steps that saves in its folder after every
  // second step, unless `flags` have another interval.
  Words Saving(const std::string& run, int steps, const Words& flags = {}) const;

  // Returns the command that runs the program alone.
  Words Alone(const Words& flags) const;
  // Returns the command of the target of `bazel run`, with this test's settings.
  Words Launcher(const Words& flags) const;
  // Returns the command that runs the program under mpirun, as a user does.
  Words Mpirun(int processes, const Words& flags) const;
  // Returns the command of two processes, the second one with its own environment variables
  // ("NAME=value").
  Words MpirunWithUnlikeRanks(const Words& second, const Words& flags) const;

  Result Run(const Words& command) const { return Process(command, root_).Wait(); }
  // Calls Run(), and expects that the command ends so.
  Result MustRun(const Words& command, int exit_code = 0) const;
  // Runs one process that saves in its folder; see Saving().
  Result Train(const std::string& run, int steps, const Words& flags = {}) const;
  Result MustTrain(const std::string& run, int steps, const Words& flags = {},
                   int exit_code = 0) const;

  // Returns the records of a run, in their order.
  std::vector<nlohmann::json> Records(const std::string& run) const;
  // Returns the bits of the loss by step. Expects that no step is recorded twice.
  std::map<int64_t, std::string> Losses(const std::string& run) const;
  // Returns the current number of records.
  int64_t RecordCount(const std::string& run) const;
  // Returns the steps of the permanent checkpoints that are committed and not quarantined.
  std::set<int64_t> Steps(const std::string& run) const;
  // Returns the number of bytes of one checkpoint of the small model.
  int64_t CheckpointBytes() const;
  // Returns the process of a rank whose command line names this test's folder; -1 without one.
  pid_t FindRank(int rank) const;

  const TestFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

}  // namespace tessera

#endif  // TESSERA_TESTS_SUPPORT_COMMAND_H_
