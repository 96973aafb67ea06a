#ifndef TESSERA_TESTS_RESUME_RESUME_RUN_H_
#define TESSERA_TESTS_RESUME_RESUME_RUN_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/comm/communicator.h"
#include "gtest/gtest.h"
#include "trainer/config/config.h"

namespace tessera {

// Fragments of configs.
inline constexpr char kGpt2[] =
    "model { size: \"gpt2-tiny\" hidden_dropout: 0.1 attention_dropout: 0.1 }";
inline constexpr char kLlama[] = "model { size: \"llama3-tiny\" }";

inline constexpr int64_t kSteps = 100;
inline constexpr int64_t kTokens =
    4200;  // 131 samples of 32: 400 samples are three epochs and a bit

// The records of a run: step -> line without its timings.
std::map<int64_t, std::string> Losses(const std::filesystem::path& run_dir,
                                      const std::string& kind);

// Runs of tiny models in this process, each in a folder below one of the test's own: kSteps steps
// with a checkpoint every 20.
class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override { std::filesystem::remove_all(root_); }

  TrainConfig Config(std::vector<std::string> fragments, const std::string& run) const;

  std::filesystem::path RunDir(const std::string& run) const { return root_ / run; }
  std::filesystem::path Checkpoints(const std::string& run) const {
    return root_ / run / "checkpoints";
  }
  std::filesystem::path StepDir(const std::string& run, int64_t step) const;

  // Trains as the command does, on as many threads as the topology has ranks. Returns rank 0's
  // notes about the origin of the state.
  absl::StatusOr<std::string> Train(const TrainConfig& unresolved);

  // Creates a folder that holds copies of the run's checkpoints up to `step` only, as a machine
  // that died then would leave it.
  void LeaveAt(const std::string& from, int64_t step, const std::string& to) const;

  // Expects that both checkpoints of `step` hold the same bytes in every data file.
  void ExpectSameTensors(const std::string& one, const std::string& other, int64_t step) const;

  std::filesystem::path root_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_RESUME_RESUME_RUN_H_
