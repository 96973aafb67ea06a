#ifndef TESSERA_TESTS_RESUME_PARALLEL_COMMAND_H_
#define TESSERA_TESTS_RESUME_PARALLEL_COMMAND_H_

// Runs a small model on several processes, started by the launcher or by mpirun itself.

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/command.h"
#include "trainer/data/token_file.h"

namespace tessera {

inline std::string Runfile(const std::string& path) {
  return std::string(std::getenv("TEST_SRCDIR")) + "/tessera/" + path;
}

inline int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// Removes what Open MPI prints about reads from a process that is gone, in a rank that was stopped
// and continues for a moment while the launcher ends it: "[host:1234] Read -1, expected ...".
inline std::string WithoutOpenMpi(const std::string& text) {
  return std::regex_replace(text, std::regex(R"(\[[^\]\n]*:[0-9]+\] Read -1, expected [^\n]*\n)"),
                            "");
}

class ParallelCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    std::mt19937 random(3);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20000; ++i) tokens.push_back(static_cast<int32_t>(random() % 100));
    auto writer = TokenFileWriter::Create((root_ / "tokens.bin").string(), TokenFormat::kGpt2);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(tokens).ok());
    ASSERT_TRUE((*writer)->Close().ok());
    std::ofstream(root_ / "run.textproto")
        << R"pb(
          model { size: "gpt2-tiny" vocab_size: 100 hidden_dropout: 0.1 }
          training { micro_batch_size: 2 global_batch_size: 8 seq_length: 32 threads: 1 }
          optimizer { lr: 1e-3 lr_decay_iters: 100 }
        )pb"
        << "data { train_data_path: \"" << (root_ / "tokens.bin").string() << "\" }\n";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string Config() const { return "--config=" + (root_ / "run.textproto").string(); }
  // The target of `bazel run`, with this test's settings.
  std::vector<std::string> Launcher(const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {
        "/usr/bin/python3", Runfile("trainer/configs/launch.py"), Runfile("trainer/app/train"),
        Runfile("trainer/data/prepare_data"), (root_ / "run.textproto").string()};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  // The user's own mpirun.
  std::vector<std::string> Mpirun(int processes, const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {"/usr/bin/env",
                                        "mpirun",
                                        "--oversubscribe",
                                        "--bind-to",
                                        "none",
                                        "-q",
                                        "-n",
                                        std::to_string(processes),
                                        Runfile("trainer/app/train"),
                                        Config()};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  // Two processes, the second with its own environment variables ("NAME=value").
  std::vector<std::string> MpirunWithUnlikeRanks(const std::vector<std::string>& second,
                                                 const std::vector<std::string>& flags) const {
    std::vector<std::string> command = Mpirun(1, flags);
    command.insert(command.end(), {":", "-n", "1", "/usr/bin/env"});
    command.insert(command.end(), second.begin(), second.end());
    command.insert(command.end(), {Runfile("trainer/app/train"), Config()});
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }
  Result Run(const std::vector<std::string>& command) const {
    return Process(command, root_).Wait();
  }

  std::filesystem::path Checkpoints(const std::string& run) const {
    return root_ / run / "checkpoints";
  }
  std::vector<std::string> Saving(const std::string& run, int steps,
                                  std::vector<std::string> more) const {
    more.insert(more.end(),
                {"--train-iters=" + std::to_string(steps), "--run-dir=" + (root_ / run).string(),
                 "--save=" + Checkpoints(run).string(), "--save-interval=2"});
    return more;
  }
  std::map<int64_t, std::string> Losses(const std::string& run) const {
    std::map<int64_t, std::string> losses;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      EXPECT_TRUE(losses.emplace(record["step"], record["loss_bits"]).second) << line;
    }
    return losses;
  }
  // Every record of a run without its timings, by kind and step.
  std::map<std::string, std::string> Records(const std::string& run) const {
    std::map<std::string, std::string> records;
    std::ifstream file(root_ / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      const bool is_step = record["kind"] == "step";
      records[record["kind"].get<std::string>() + " " + record["step"].dump()] =
          is_step ? record["loss_bits"].dump() + " " + record["grad_norm"].dump()
                  : record["eval_loss_bits"].dump();
    }
    return records;
  }
  // Returns false after a minute.
  static bool WaitFor(const std::filesystem::path& path) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!std::filesystem::exists(path)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  // The process of a rank whose command line names this test's folder.
  pid_t FindRank(int rank) const {
    const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
    for (const std::filesystem::directory_entry& entry :
         std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string environment = '\0' + ReadFile(entry.path() / "environ");
      if (environment.find('\0' + variable + '\0') == std::string::npos) continue;
      if (ReadFile(entry.path() / "cmdline").find(root_.string()) == std::string::npos) continue;
      return static_cast<pid_t>(std::stoi(name));
    }
    return -1;
  }

  std::filesystem::path root_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_RESUME_PARALLEL_COMMAND_H_
