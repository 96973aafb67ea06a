#ifndef TESSERA_TESTS_RESUME_RESUME_RUN_H_
#define TESSERA_TESTS_RESUME_RESUME_RUN_H_

// Runs of tiny models in this process, for the tests of resumed runs.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/session_run.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"

namespace tessera {

// Fragments of configs.
inline constexpr char kGpt2[] =
    "model { size: \"gpt2-tiny\" hidden_dropout: 0.1 attention_dropout: 0.1 }";
inline constexpr char kLlama[] = "model { size: \"llama3-tiny\" }";

// A test of runs of kSteps steps with a checkpoint every kInterval steps, each in a folder below
// the test's own. Warmup ends at step 10 and decay at 20, so that checkpoints lie inside each.
class ResumeTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSteps = 20;
  static constexpr int64_t kInterval = 4;
  static constexpr int64_t kVocabulary = 211;  // not a multiple of the padding
  static constexpr int64_t kTokens = 900;      // 28 samples of 32: 80 are almost three epochs

  void SetUp() override {
    ASSERT_OK(testing::WriteTokens(root_ / "tokens.bin", kVocabulary, kTokens));
  }

  TrainConfig Config(std::vector<std::string> fragments, const std::string& run) const {
    fragments.insert(fragments.begin(), R"pb(
      training {
        micro_batch_size: 2
        global_batch_size: 4
        seq_length: 32
        train_iters: 20
        eval_interval: 5
        eval_iters: 2
        threads: 2
      }
      optimizer {
        lr: 3e-3
        min_lr: 1e-4
        lr_decay_style: COSINE
        lr_warmup_iters: 10
        lr_decay_iters: 20
        weight_decay: 0.1
        clip_grad: 0.5
      }
      checkpoint { save_interval: 4 }
    )pb");
    TrainConfig result;
    for (const std::string& text : fragments) {
      const absl::StatusOr<TrainConfig> part = ParseConfig(text, "resume_test");
      EXPECT_OK(part);
      if (part.ok()) result.MergeFrom(*part);
    }
    result.mutable_model()->set_vocab_size(kVocabulary);
    result.mutable_data()->set_train_data_path((root_ / "tokens.bin").string());
    result.mutable_data()->set_valid_data_path((root_ / "tokens.bin").string());
    result.mutable_output()->set_run_dir(RunDir(run).string());
    result.mutable_checkpoint()->set_save(Checkpoints(run).string());
    return result;
  }

  std::filesystem::path RunDir(const std::string& run) const { return root_ / run; }
  std::filesystem::path Checkpoints(const std::string& run) const {
    return root_ / run / "checkpoints";
  }
  std::filesystem::path StepDir(const std::string& run, int64_t step) const {
    return Checkpoints(run) / absl::StrFormat("step-%08d", step);
  }

  // Returns rank 0's notes about the origin of the state.
  static absl::StatusOr<std::string> Train(const TrainConfig& unresolved) {
    TESSERA_ASSIGN_OR_RETURN(const TrainConfig config, ResolveConfig(unresolved));
    return testing::TrainOnProcessors(config);
  }

  // Returns the records of one kind of a run: step -> bits of the loss and, in records of steps, of
  // the gradient norm and the learning rate.
  std::map<int64_t, std::string> Losses(const std::string& run,
                                        const std::string& kind = "step") const {
    std::map<int64_t, std::string> losses;
    std::ifstream file(RunDir(run) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record["kind"].get<std::string>() != kind) continue;
      const std::string values =
          kind == "eval" ? record["eval_loss_bits"].dump()
                         : absl::StrCat(record["loss_bits"].dump(), " ", record["grad_norm"].dump(),
                                        " ", record["lr"].dump());
      EXPECT_TRUE(losses.emplace(record["step"].get<int64_t>(), values).second) << line;
    }
    return losses;
  }

  // Creates a folder with copies of the run's checkpoints up to `step` only, as a machine that died
  // then would leave it.
  void LeaveAt(const std::string& from, int64_t step, const std::string& to) const {
    std::filesystem::create_directories(Checkpoints(to));
    for (int64_t saved = kInterval; saved <= step; saved += kInterval) {
      std::filesystem::copy(StepDir(from, saved), StepDir(to, saved),
                            std::filesystem::copy_options::recursive);
    }
    std::filesystem::copy_file(RunDir(from) / "metrics.jsonl", RunDir(to) / "metrics.jsonl");
  }

  // Expects that both checkpoints of `step` hold the same bytes in every data file.
  void ExpectSameTensors(const std::string& one, const std::string& other, int64_t step) const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(StepDir(one, step))) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      EXPECT_TRUE(ReadFile(entry.path()) ==
                  ReadFile(Counterpart(entry.path(), StepDir(other, step))))
          << entry.path().filename() << " of step " << step << " differs";
    }
    EXPECT_GE(files, 2);
  }

  const TestFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

}  // namespace tessera

#endif  // TESSERA_TESTS_RESUME_RESUME_RUN_H_
