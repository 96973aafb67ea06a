// With save_on_exception, a run that cannot go on saves its last whole step, if its ranks agree
// that they have it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/replace_file.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/layers/parameter.h"
#include "storage/s3/testing/s3_server.h"
#include "tests/support/logical_state.h"
#include "tests/support/session_run.h"
#include "tests/support/training.h"
#include "trainer/app/session.h"
#include "trainer/config/config.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/dataset.h"
#include "trainer/data/token_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kSequence = 24, kBatch = 16;
constexpr char kSavedSentence[] = "step 3 is saved (--save-on-exception)";

class SaveOnExceptionTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_OK(testing::WriteTokens(root_ / "good.bin", testing::kVocabulary, 4000));
  }

  TrainConfig Config(const std::string& run, const std::string& topology,
                     const char* model = testing::kGpt2) const {
    TrainConfig config = OrFail(testing::MakeConfig({.model = model,
                                                     .tokens = root_ / "good.bin",
                                                     .topology = topology,
                                                     .exact_shards = 2,
                                                     .global_batch_size = kBatch,
                                                     .seq_length = kSequence,
                                                     .steps = 6}));
    config.mutable_output()->set_run_dir(root_ / (run + "_records"));
    config.mutable_checkpoint()->set_save(root_ / run);
    config.mutable_checkpoint()->set_save_interval(100);
    config.mutable_checkpoint()->set_save_on_exception(true);
    return config;
  }

  // Writes bad.bin, in which one sample of step `step` has a token that the model does not have.
  void DamageSampleOf(int64_t step) const {
    int64_t sample = 0;
    ASSERT_OK(testing::TrainOnProcessors(
        Config("unused", "single"), [&](const Session& session) -> absl::Status {
          sample = session.train_data->loader->order().SampleAt((step - 1) * kBatch + 5);
          return absl::OkStatus();
        }));
    std::string bytes = *ReadWholeFile(root_ / "good.bin");
    const uint16_t token = testing::kVocabulary;
    std::memcpy(bytes.data() + kTokenFileHeaderBytes + 2 * (sample * kSequence + 3), &token, 2);
    ASSERT_OK(ReplaceFile(root_ / "bad.bin", bytes));
  }

  // Runs, and returns the error.
  static std::string ErrorOf(const TrainConfig& config,
                             const testing::SessionBody& body = testing::TrainSession) {
    const absl::Status status = testing::TrainOnProcessors(config, body).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }

  // Returns the names of the checkpoints of a run.
  std::vector<std::string> Saved(const std::string& run) const {
    std::vector<std::string> names;
    if (!fs::exists(root_ / run)) return names;
    for (const auto& entry : fs::directory_iterator(root_ / run)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) names.push_back(name);
    }
    return names;
  }
  ckpt::Manifest ManifestOf(const std::string& run) const {
    const auto folder = ckpt::CheckpointFolder::Open((root_ / run).string());
    return folder->Latest()->manifest();
  }

  const TestFolder folder_;
  const fs::path root_ = folder_.path();
};

// State and position in the data equal those of an undisturbed run.
TEST_P(SaveOnExceptionTest, ASampleThatCannotBeReadEndsTheRunWithTheStepBefore) {
  TrainConfig whole = Config("whole", "single");
  whole.mutable_checkpoint()->set_save_interval(3);
  ASSERT_OK(testing::TrainOnProcessors(whole));
  DamageSampleOf(4);
  for (const bool async : {false, true}) {
    const std::string run = async ? "async" : "sync";
    TrainConfig config = Config(run, GetParam());
    config.mutable_data()->set_train_data_path(root_ / "bad.bin");
    config.mutable_checkpoint()->set_async_save(async);
    const std::string error = ErrorOf(config);
    EXPECT_THAT(error, HasSubstr("bad.bin"));
    EXPECT_THAT(error, HasSubstr(kSavedSentence));
    ASSERT_THAT(Saved(run), ::testing::ElementsAre("step-00000003"));
    EXPECT_EQ(OrFail(testing::ReadDigests(root_ / run, 3)),
              OrFail(testing::ReadDigests(root_ / "whole", 3)));
    const ckpt::Manifest manifest = ManifestOf(run);
    EXPECT_EQ(manifest.trainer().data().consumed_samples(), 3 * kBatch);
    EXPECT_TRUE(ckpt::IsHealthy(manifest));
  }
}

TEST_P(SaveOnExceptionTest, WithoutTheSettingNothingIsSaved) {
  DamageSampleOf(4);
  TrainConfig config = Config("run", GetParam());
  config.mutable_data()->set_train_data_path(root_ / "bad.bin");
  config.mutable_checkpoint()->set_save_on_exception(false);
  EXPECT_THAT(ErrorOf(config), ::testing::Not(HasSubstr("save-on-exception")));
  EXPECT_TRUE(Saved("run").empty());
}

TEST_P(SaveOnExceptionTest, AStepThatIsSavedIsNotSavedAgain) {
  DamageSampleOf(4);
  TrainConfig config = Config("run", GetParam());
  config.mutable_data()->set_train_data_path(root_ / "bad.bin");
  config.mutable_checkpoint()->set_save_interval(1);
  EXPECT_THAT(ErrorOf(config), HasSubstr("there is nothing newer to save than step 3"));
  EXPECT_EQ(Saved("run").size(), 3);
  DamageSampleOf(1);
  config = Config("first", GetParam());
  config.mutable_data()->set_train_data_path(root_ / "bad.bin");
  EXPECT_THAT(ErrorOf(config), HasSubstr("there is nothing newer to save than step 0"));
  EXPECT_TRUE(Saved("first").empty());
  // A step that was resumed from memory is in no checkpoint.
  const std::string error = ErrorOf(config, [](Session& session) {
    session.resumed_in_memory = true;
    return testing::TrainSession(session);
  });
  EXPECT_THAT(error, HasSubstr("step 0 is saved (--save-on-exception)"));
  EXPECT_EQ(Saved("first").size(), 1);
}

TEST_P(SaveOnExceptionTest, AnEvaluationThatCannotReadEndsTheRunWithItsStep) {
  DamageSampleOf(1);
  TrainConfig config = Config("run", GetParam());
  config.mutable_data()->set_valid_data_path(root_ / "bad.bin");
  config.mutable_training()->set_eval_interval(3);
  config.mutable_training()->set_eval_iters(100);
  EXPECT_THAT(ErrorOf(config), HasSubstr(kSavedSentence));
  EXPECT_THAT(Saved("run"), ::testing::ElementsAre("step-00000003"));
}

// From which no run could resume.
TEST_P(SaveOnExceptionTest, AStateThatIsNotFiniteIsNotSaved) {
  TrainConfig config = Config("run", GetParam());
  config.mutable_training()->set_train_iters(50);
  const std::string error = ErrorOf(config, [](Session& session) -> absl::Status {
    for (const TrainedChunk& chunk : session.trainer->chunks()) {
      const TensorView values = chunk.parameters->values();
      std::fill_n(values.as<float>(), values.elements(), NAN);
    }
    return testing::TrainSession(session);
  });
  EXPECT_THAT(error, HasSubstr("training has diverged: the gradients of the last 10 steps"));
  EXPECT_THAT(error, HasSubstr("step 10 is not saved: its state is not finite"));
  EXPECT_TRUE(Saved("run").empty());
}

// Writes a copy of a token file with one token alone: every position then has the same gradients.
void CopyWithToken(const fs::path& from, const fs::path& path, uint16_t token) {
  std::string bytes = *ReadWholeFile(from);
  for (size_t at = kTokenFileHeaderBytes; at + 2 <= bytes.size(); at += 2) {
    std::memcpy(bytes.data() + at, &token, 2);
  }
  ASSERT_OK(ReplaceFile(path, bytes));
}

// Sets the head's row of a token to `of_token` and the others to its opposite, and the norm before
// it to zero. All tokens are then equally likely, and the norm's gradients overflow.
void MakeGradientsOverflow(const Session& session, int64_t token, float of_token) {
  for (const TrainedChunk& chunk : session.trainer->chunks()) {
    for (const Parameter* const parameter : chunk.parameters->parameters()) {
      float* const values = parameter->value.as<float>();
      for (const ParameterPiece& piece : parameter->pieces) {
        if (piece.name == "model.norm.weight") std::fill_n(values, parameter->elements(), 0.0F);
        if (piece.name != "lm_head.weight") continue;
        for (int64_t i = 0; i < piece.shape[0]; ++i) {
          const bool is_token = piece.global_offset[0] + i == token;
          std::fill_n(values + (piece.local_offset[0] + i) * piece.shape[1], piece.shape[1],
                      is_token ? of_token : -of_token);
        }
      }
    }
  }
}

// Neither the weights nor the loss tell: no step was updated.
TEST_P(SaveOnExceptionTest, ARunThatHasDivergedWithFiniteWeightsSavesAStateThatSaysSo) {
  constexpr uint16_t kToken = 7;
  CopyWithToken(root_ / "good.bin", root_ / "one.bin", kToken);
  TrainConfig config = Config("run", GetParam(), testing::kLlama);
  config.mutable_data()->set_train_data_path(root_ / "one.bin");
  config.mutable_training()->set_train_iters(50);
  const std::string error = ErrorOf(config, [](Session& session) {
    MakeGradientsOverflow(session, kToken, 3e38F);
    return testing::TrainSession(session);
  });
  EXPECT_THAT(error, HasSubstr("training has diverged"));
  EXPECT_THAT(error, HasSubstr("step 10 is saved (--save-on-exception)"));
  ASSERT_THAT(Saved("run"), ::testing::ElementsAre("step-00000010"));
  const ckpt::Manifest manifest = ManifestOf("run");
  EXPECT_TRUE(manifest.trainer().health().state_is_finite());
  EXPECT_NEAR(manifest.trainer().last_loss(), std::log(testing::kVocabulary), 1e-3);
  EXPECT_FALSE(ckpt::IsHealthy(manifest));
}

INSTANTIATE_TEST_SUITE_P(Topologies, SaveOnExceptionTest,
                         ::testing::Values("single", "dp2_zero2", "tp2", "pp2",
                                           "dp2_zero2_tp2_pp2"),
                         [](const auto& info) { return info.param; });

// A rank that leaves in the update of step 4: another may have updated its part.
TEST_F(SaveOnExceptionTest, ARankThatFailsInAnUpdateSavesNothing) {
  std::string said;  // by the other rank
  const std::string error =
      ErrorOf(Config("run", "dp2_zero2"), [&](Session& session) -> absl::Status {
        Communicator* const world = session.mesh->world();
        session.trainer->set_before_overwrite([&session, world](const TensorView&) {
          if (world->rank() == 1 && session.progress.step == 3) {
            world->Abort(absl::UnavailableError("the memory is gone"));
          }
        });
        const absl::Status status = testing::TrainSession(session);
        if (world->rank() == 0) said = std::string(status.message());
        return status;
      });
  EXPECT_THAT(error, HasSubstr("the memory is gone"));
  EXPECT_THAT(said, HasSubstr("nothing is saved (--save-on-exception)"));
  EXPECT_TRUE(Saved("run").empty());
}

// Notes that a step asks for its batch: what the step before had to save has been decided.
class NotingLoader final : public BatchLoader {
 public:
  NotingLoader(const TokenDataset* dataset, std::unique_ptr<BatchLoader> base, int64_t step,
               absl::Notification& begins)
      : BatchLoader(dataset, /*seed=*/0), base_(std::move(base)), step_(step), begins_(begins) {}

  absl::Status FillBatch(int64_t consumed_samples, int64_t first, int64_t count,
                         std::span<int32_t> ids, std::span<int32_t> targets) const override {
    if (consumed_samples == (step_ - 1) * kBatch && !begins_.HasBeenNotified()) begins_.Notify();
    return base_->FillBatch(consumed_samples, first, count, ids, targets);
  }
  absl::Status kept_error() const override { return base_->kept_error(); }

 private:
  const std::unique_ptr<BatchLoader> base_;
  const int64_t step_;
  absl::Notification& begins_;
};

// A save that was skipped, since an earlier one was in flight, has kept nothing.
TEST_F(SaveOnExceptionTest, AStepWhoseSaveWasSkippedIsSaved) {
  setenv("AWS_ACCESS_KEY_ID", "TESTKEY", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "a/secret+key", 1);
  DamageSampleOf(4);
  TrainConfig config = Config("run", "single");
  s3::S3Server server({.region = "us-east-1"});
  config.mutable_data()->set_train_data_path(root_ / "bad.bin");
  config.mutable_checkpoint()->set_save("s3://bucket/run");
  config.mutable_checkpoint()->set_s3_endpoint(server.endpoint());
  config.mutable_checkpoint()->set_save_interval(1);
  config.mutable_checkpoint()->set_async_save(true);
  config.mutable_checkpoint()->set_async_save_skip(true);
  absl::Notification fourth_begins;
  server.AddFault({.method = "PUT", .key_part = "step-00000001/", .meanwhile = [&] {
                     fourth_begins.WaitForNotificationWithTimeout(absl::Minutes(1));
                   }});
  const std::string error = ErrorOf(config, [&](Session& session) {
    DataSource& data = *session.train_data;
    data.loader = std::make_unique<NotingLoader>(data.dataset.get(), std::move(data.loader), 4,
                                                 fourth_begins);
    return testing::TrainSession(session);
  });
  EXPECT_THAT(error, HasSubstr(kSavedSentence));
  EXPECT_EQ(std::ranges::count(server.keys(), "run/step-00000003/manifest.pb"), 1) << error;
}

}  // namespace
}  // namespace tessera
