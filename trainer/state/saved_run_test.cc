#include "trainer/state/saved_run.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/internal/damage.h"
#include "comm/threads/thread_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/run_saver.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_model.h"
#include "trainer/state/saved_settings.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  // Creates a step whose manifest exists, but is damaged.
  void WriteStep(const std::string& name) {
    fs::create_directories(folder_ + "/" + name);
    std::ofstream(folder_ + "/" + name + "/manifest.pb") << "no manifest";
  }

  // A run with these settings. Where it loads, it does not resume by itself.
  static TrainConfig Of(const CheckpointConfig& checkpoint) {
    TrainConfig config;
    config.mutable_training()->set_train_iters(10);
    *config.mutable_checkpoint() = checkpoint;
    if (!checkpoint.load().empty()) config.mutable_checkpoint()->set_auto_resume(false);
    return config;
  }
  auto Find(const CheckpointConfig& checkpoint) {
    return FindSavedRun(Of(checkpoint), group_, Sink());
  }
  auto OpenSaver(const CheckpointConfig& checkpoint) {
    return RunSaver::Open(Of(checkpoint), /*world=*/nullptr, {.notes = Sink()},
                          absl::ZeroDuration());
  }
  NoteSink Sink() {
    return [this](const std::string& note) { notes_ += note + "\n"; };
  }

  std::string folder_;
  std::string notes_;
  ckpt::SingleProcessGroup alone_;
  const RankGroup group_{.ranks = alone_};
};

TEST_F(CheckpointsTest, OnlyTheRunsOwnFolderMayBeEmpty) {
  for (const std::string& folder : {folder_, folder_ + "/none"}) {
    CheckpointConfig other;
    other.set_load(folder);
    EXPECT_TRUE(absl::IsNotFound(Find(other).status()));
    CheckpointConfig own;
    own.set_save(folder);
    ASSERT_OK_AND_ASSIGN(const auto fresh, Find(own));
    EXPECT_FALSE(fresh.has_value());
    own.set_ckpt_step(3);
    EXPECT_TRUE(absl::IsNotFound(Find(own).status()));
    own.clear_ckpt_step();
    own.set_exit_on_missing_checkpoint(true);
    EXPECT_TRUE(absl::IsNotFound(Find(own).status()));
    // The weights alone are a wish, too.
    own.clear_exit_on_missing_checkpoint();
    own.set_load(folder);
    own.set_finetune(true);
    EXPECT_TRUE(absl::IsNotFound(Find(own).status()));
  }
}

TEST_F(CheckpointsTest, ACheckpointIsNotTakenForAFolderWithoutAny) {
  WriteStep("step-00000002");
  CheckpointConfig config;
  config.set_load(folder_ + "/step-00000002");
  config.set_save(folder_ + "/step-00000002");
  const absl::Status load = Find(config).status();
  EXPECT_TRUE(absl::IsDataLoss(load)) << load;
  const absl::Status save = OpenSaver(config).status();
  EXPECT_TRUE(absl::IsInvalidArgument(save)) << save;
  EXPECT_THAT(std::string(save.message()), HasSubstr(config.save() + " is a single checkpoint"));
}

TEST_F(CheckpointsTest, SavesThatWereNeverCompletedAreSaid) {
  CheckpointConfig config;
  config.set_load(folder_);
  const auto said = [&](int64_t step) {
    return OrFail(DescribeSkipped(config.load(), step, config));
  };
  WriteStep("step-00000004");
  EXPECT_EQ(said(-1), "");
  fs::create_directories(folder_ + "/step-00000002");
  fs::create_directories(folder_ + "/step-00000006");
  fs::create_directories(folder_ + "/something-else");
  EXPECT_EQ(said(4), "skipped in " + folder_ +
                         ": step-00000006, a save that was never completed (no manifest.pb)");
  EXPECT_THAT(said(-1), HasSubstr("step-00000002, step-00000006, saves that were never"));
  EXPECT_EQ(said(6), "");
  config.set_load(folder_ + "/none");
  EXPECT_EQ(said(-1), "");
}

TEST_F(CheckpointsTest, ADamagedManifestNamesTheStepBefore) {
  WriteStep("step-00000002");
  WriteStep("step-00000004");
  CheckpointConfig config;
  config.set_load(folder_);
  const absl::Status newest = Find(config).status();
  EXPECT_TRUE(absl::IsDataLoss(newest)) << newest;
  EXPECT_THAT(std::string(newest.message()), HasSubstr("--ckpt-step=2"));
  config.set_ckpt_step(2);
  const absl::Status oldest = Find(config).status();
  EXPECT_TRUE(absl::IsDataLoss(oldest)) << oldest;
  EXPECT_THAT(std::string(oldest.message()), ::testing::Not(HasSubstr("--ckpt-step")));
}

class AutoResumeTest : public CheckpointsTest {
 protected:
  void SetUp() override {
    CheckpointsTest::SetUp();
    config_.mutable_training()->set_train_iters(10);
    config_.mutable_checkpoint()->set_save(folder_);
    for (const int64_t step : {2, 4, 6}) Save(folder_, step);
  }
  static void Save(const std::string& folder, int64_t step, bool loss_is_sane = true,
                   const std::string& model = "") {
    ASSERT_OK_AND_ASSIGN(const auto opened,
                         ckpt::CheckpointFolder::Open(folder, {.create_root = true}));
    ckpt::Manifest manifest;
    manifest.mutable_trainer()->mutable_health()->set_state_is_finite(true);
    manifest.mutable_trainer()->mutable_health()->set_loss_is_sane(loss_is_sane);
    manifest.mutable_model()->set_text(model);
    ASSERT_OK(opened.Save({.step = step, .metadata = ckpt::ToMetadata(manifest)}, {}, {}));
  }
  // The step that the run continues from; -1 for a new run.
  int64_t Resumed() {
    notes_.clear();
    const auto run = FindSavedRun(config_, group_, Sink());
    EXPECT_OK(run);
    if (!run.ok() || !run->has_value()) return -1;
    own_ = (*run)->is_own;
    return (*run)->manifest().trainer().step();
  }
  void Damage(const std::string& checkpoint) const {
    std::ofstream(folder_ + "/" + checkpoint + "/manifest.pb") << "no manifest";
  }

  TrainConfig config_;
  bool own_ = false;
};

TEST_F(AutoResumeTest, ARunThatDoesNotSaveMovesNothing) {
  Damage("step-00000006");
  for (const bool saves : {false, true}) {
    config_.mutable_checkpoint()->set_enable_save_ckpt(saves);
    config_.mutable_training()->set_train_iters(0);
    EXPECT_EQ(Resumed(), 4);
    EXPECT_THAT(notes_, HasSubstr("it is left where it is"));
    EXPECT_TRUE(fs::exists(folder_ + "/step-00000006"));
  }
}

// Damage may be found by any rank, whose message names it.
TEST_F(AutoResumeTest, EveryRankKnowsTheStepBefore) {
  CheckpointConfig named;
  named.set_load(folder_);
  EXPECT_OK(ThreadWorld(2).Run([&](Communicator& comm) -> absl::Status {
    CommunicatorGroup ranks(comm);
    TESSERA_ASSIGN_OR_RETURN(
        const std::optional<SavedRun> found,
        FindSavedRun(Of(named), {.ranks = ranks, .timeout = absl::Seconds(30)}, Sink()));
    EXPECT_EQ(found->checkpoint.step(), 6);
    EXPECT_EQ(found->older_step, 4);
    return absl::OkStatus();
  }));
}

TEST_F(AutoResumeTest, LoadIsForAFolderWithoutAny) {
  CheckpointConfig& checkpoint = *config_.mutable_checkpoint();
  EXPECT_EQ(Resumed(), 6);
  EXPECT_THAT(notes_, ::testing::Not(HasSubstr("and not from load=")));
  checkpoint.set_load(folder_ + "/other");
  checkpoint.set_finetune(true);
  Save(folder_ + "/other", 8);
  EXPECT_EQ(Resumed(), 6);
  EXPECT_TRUE(own_);
  EXPECT_THAT(notes_, HasSubstr("and not from load="));
  EXPECT_FALSE(
      SettingsFor(config_, *FindSavedRun(config_, group_, Sink())).checkpoint().finetune());
  checkpoint.set_save(folder_ + "/empty");
  EXPECT_EQ(Resumed(), 8);
  Save(folder_ + "/other/rolling-0", 9);
  EXPECT_EQ(Resumed(), 9);
  checkpoint.set_ckpt_step(8);
  EXPECT_EQ(Resumed(), 8);
  EXPECT_FALSE(own_);
  // It is not for a folder whose checkpoints are all damaged.
  checkpoint.set_save(folder_);
  for (const char* step : {"step-00000002", "step-00000004", "step-00000006"}) Damage(step);
  const absl::Status refused = FindSavedRun(config_, group_, Sink()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  checkpoint.set_save(folder_ + "/empty");
  EXPECT_TRUE(SettingsFor(config_, *FindSavedRun(config_, group_, Sink())).checkpoint().finetune());
}

TEST_F(AutoResumeTest, TheModelIsThatOfTheCheckpointThatItResumesFrom) {
  CheckpointConfig& checkpoint = *config_.mutable_checkpoint();
  checkpoint.set_load(folder_ + "/other");
  Save(checkpoint.save(), 8, /*loss_is_sane=*/true, "size: 'gpt2-tiny' num_layers: 3");
  Save(checkpoint.load(), 9, /*loss_is_sane=*/true, "size: 'gpt2-tiny' num_layers: 5");
  for (const bool resumes : {true, false}) {
    checkpoint.set_auto_resume(resumes);
    EXPECT_EQ(Resumed(), resumes ? 8 : 9);
    ASSERT_OK_AND_ASSIGN(const auto model, FindSavedModel(checkpoint));
    ASSERT_TRUE(model.has_value());
    EXPECT_EQ(model->config.num_layers(), resumes ? 3 : 5);
  }
}

TEST_F(AutoResumeTest, ItsOwnFolderHasManyNames) {
  fs::create_directory_symlink(folder_, folder_ + "/link");
  CheckpointConfig& checkpoint = *config_.mutable_checkpoint();
  const fs::path path = folder_;
  const std::string twice = (path.parent_path() / "x" / ".." / path.filename()).string();
  for (const std::string& name :
       {folder_ + "/", folder_ + "//./", folder_ + "/link", fs::relative(path).string(), twice}) {
    SCOPED_TRACE(name);
    checkpoint.set_load(name);
    checkpoint.set_ckpt_step(4);
    EXPECT_EQ(Resumed(), 4);
    checkpoint.clear_ckpt_step();
    EXPECT_EQ(Resumed(), 6);
    // Both may be named before there is such a folder.
    checkpoint.set_load(name + "/none");
    checkpoint.set_save(folder_ + "/none");
    EXPECT_TRUE(LoadsItsOwn(checkpoint));
    checkpoint.set_save(folder_);
    EXPECT_FALSE(LoadsItsOwn(checkpoint));
  }
  checkpoint.set_ckpt_step(4);
  EXPECT_EQ(Resumed(), 6);
  EXPECT_THAT(notes_, HasSubstr("/none with ckpt_step=4"));
}

TEST_F(AutoResumeTest, ADivergedCheckpointOfAnotherRunIsReadOnlyOnRequest) {
  const std::string other = folder_ + "/other", empty = folder_ + "/empty";
  CheckpointConfig& checkpoint = *config_.mutable_checkpoint();
  checkpoint.set_load(other);
  checkpoint.set_save(empty);
  Save(other, 2, /*loss_is_sane=*/false);
  EXPECT_EQ(Resumed(), 2);
  EXPECT_THAT(notes_, HasSubstr("WARNING: " + other + " holds only checkpoints of a run that had"));
  Save(other, 4);
  Save(other + "/rolling-0", 5, /*loss_is_sane=*/false);
  Save(other, 6, /*loss_is_sane=*/false);
  EXPECT_EQ(Resumed(), 4);
  for (const std::string step : {"rolling-0/step-00000005", "step-00000006"}) {
    EXPECT_THAT(notes_, HasSubstr("WARNING: skipped " + other + "/" + step +
                                  ": the run had diverged at step "));
  }
  ASSERT_OK_AND_ASSIGN(const SavedRun named, FindNamed(config_, group_, Sink()));
  const std::vector<SkippedRun>& skipped = named.skipped;
  ASSERT_EQ(skipped.size(), 2);
  EXPECT_EQ(skipped[0].word, "diverged");
  EXPECT_THAT(skipped[0].sentence, HasSubstr("step-00000006: the run had diverged at step "));
  checkpoint.set_ckpt_step(6);
  EXPECT_EQ(Resumed(), 6);
  EXPECT_EQ(notes_, "");
}

TEST(StagingFolderTest, BucketsOfOneNameInTwoStoresHaveOneEach) {
  unsetenv("AWS_ENDPOINT_URL_S3");
  unsetenv("AWS_ENDPOINT_URL");
  CheckpointConfig config, local;
  config.set_save("s3://bucket/run");
  local.set_save("/runs/a");
  std::set<std::string> folders = {StagingFolderOf(config)};
  EXPECT_THAT(*folders.begin(),
              HasSubstr(absl::StrFormat("-%08x_tmp_ckpt", Crc32c(std::string("s3://bucket/run")))));
  const std::string folder = StagingFolderOf(local);
  setenv("AWS_ENDPOINT_URL", "http://a:9000", 1);
  folders.insert(StagingFolderOf(config));
  setenv("AWS_ENDPOINT_URL_S3", "http://b:9000", 1);
  folders.insert(StagingFolderOf(config));
  config.set_s3_endpoint("http://c:9000");
  folders.insert(StagingFolderOf(config));
  EXPECT_EQ(folders.size(), 4);
  EXPECT_EQ(StagingFolderOf(local), folder);
  unsetenv("AWS_ENDPOINT_URL_S3");
  unsetenv("AWS_ENDPOINT_URL");
}

// What a run continues from that has a replica of step 120, and checkpoints of these steps.
class ReplicaTest : public CheckpointsTest {
 protected:
  struct Outcome {
    absl::Status status;
    std::vector<std::string> tried;  // "120 in memory", "100"
  };
  Outcome Continue(const std::vector<int64_t>& steps, bool is_damaged = false) {
    std::vector<float> memory(8);
    ckpt::ShardedTensor tensor = {.name = "weight", .global_shape = {8}};
    tensor.shards = {ckpt::Shard::Of(memory, {.global_offset = {0}, .shape = {8}})};
    const auto save = [&](const std::string& folder, int64_t step) {
      fs::remove_all(folder + absl::StrFormat("/step-%08d", step));
      const auto opened = ckpt::CheckpointFolder::Open(folder, {.create_root = true});
      EXPECT_OK(opened->Save(step, {{tensor}}));
      return *opened->At(step);
    };
    CheckpointConfig config;
    config.set_save(folder_ + "/save");
    for (const int64_t step : steps) save(config.save(), step);
    SavedRun replica = {
        .checkpoint = save(folder_ + "/memory", 120), .is_own = true, .in_memory = true};
    Outcome outcome;
    const auto saver = OrFail(OpenSaver(config));
    const absl::StatusOr<std::vector<SkippedRun>> skipped = LoadSavedRun(
        Of(config), group_, saver->manager(), Sink(),
        [&](const std::optional<SavedRun>& saved) {
          outcome.tried.push_back(!saved.has_value()
                                      ? "nothing"
                                      : absl::StrFormat("%d%s", saved->checkpoint.step(),
                                                        saved->in_memory ? " in memory" : ""));
          if (!saved.has_value() || !saved->in_memory || !is_damaged) return absl::OkStatus();
          return ckpt::WithDamagedParts(absl::DataLossError("a bad byte"), {{.file = "model"}});
        },
        std::move(replica));
    outcome.status = skipped.status();
    return outcome;
  }
};

TEST_F(ReplicaTest, TheNewerOneCountsAndADamagedReplicaDoesNot) {
  EXPECT_THAT(Continue({80, 100}).tried, ElementsAre("120 in memory"));
  EXPECT_THAT(notes_, HasSubstr("the store has step 100: 20 steps kept"));
  EXPECT_THAT(Continue({80, 100}, /*is_damaged=*/true).tried, ElementsAre("120 in memory", "100"));
  EXPECT_THAT(notes_, HasSubstr("is not used: a bad byte"));
  EXPECT_THAT(Continue({120}).tried, ElementsAre("120 in memory"));
  EXPECT_THAT(Continue({140}).tried, ElementsAre("140"));
}

TEST_F(ReplicaTest, ItCountsWhereTheStoreHasNothingThatIsValid) {
  EXPECT_THAT(Continue({}).tried, ElementsAre("120 in memory"));
  EXPECT_THAT(notes_, HasSubstr("the store has no checkpoint: 120 steps kept"));
  EXPECT_THAT(Continue({}, /*is_damaged=*/true).tried, ElementsAre("120 in memory", "nothing"));
  WriteStep("save/step-00000130");
  EXPECT_THAT(Continue({}).tried, ElementsAre("120 in memory"));
  fs::remove_all(folder_ + "/save");
  WriteStep("save/step-00000130");
  const Outcome none = Continue({}, /*is_damaged=*/true);
  EXPECT_THAT(none.tried, ElementsAre("120 in memory"));
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status)) << none.status;
}

}  // namespace
}  // namespace tessera
