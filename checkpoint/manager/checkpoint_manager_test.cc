// All ranks of a job decide the same, and it writes and deletes only in a folder that it has.

#include "checkpoint/include/checkpoint_manager.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/testing/test_state.h"
#include "storage/lock/folder_lock.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;
constexpr int64_t kRows = 300;  // a third on each rank

// A job of three ranks, which know different things.
class CheckpointManagerTest : public ::testing::Test {
 protected:
  // Options and facts of one rank. Facts may be changed from step to step.
  using OptionsOf = std::function<void(int rank, CheckpointManagerOptions&)>;
  using FactsOf = std::function<void(int rank, StepState&)>;

  // The steps of one run: rank 0's decisions, as "5 permanent signal", where they are not to do
  // nothing, and how each rank ends.
  struct Run {
    std::vector<std::string> decisions;
    std::vector<absl::Status> ends = std::vector<absl::Status>(kRanks);
  };
  Run Train(const SaveScheduleOptions& schedule, const FactsOf& facts = nullptr,
            const OptionsOf& change = nullptr) {
    Run run;
    std::vector<std::vector<std::string>> decisions(kRanks);
    RunRanks(kRanks, [&](ProcessGroup& group) {
      run.ends[group.rank()] = TrainRank(group, schedule, facts, change, decisions[group.rank()]);
    });
    EXPECT_THAT(decisions, Each(decisions[0]));
    run.decisions = decisions[0];
    return run;
  }
  absl::Status TrainRank(ProcessGroup& group, const SaveScheduleOptions& schedule,
                         const FactsOf& facts, const OptionsOf& change,
                         std::vector<std::string>& decisions) {
    const int rank = group.rank();
    CheckpointManagerOptions options;
    options.save.group = &group;
    options.save.timeout = absl::Seconds(20);
    options.schedule = schedule;
    if (change) change(rank, options);
    const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), storage_.get());
    std::vector<float> part(kRows / kRanks);  // outlives the manager, which may still save it
    TESSERA_ASSIGN_OR_RETURN(auto manager, JobSaves::Open(storage, nullptr, std::move(options)));
    ShardedTensor tensor = {.name = "weight", .global_shape = {kRows}};
    tensor.shards = {
        Shard::Of(part, {.global_offset = {rank * kRows / kRanks}, .shape = {kRows / kRanks}})};
    const StateDict state = {{tensor}};
    TESSERA_ASSIGN_OR_RETURN(const auto resumed, manager->TryResume(state));
    int64_t step = resumed.checkpoint.has_value() ? resumed.checkpoint->step() : 0;
    EXPECT_THAT(part, Each(static_cast<float>(step)));
    for (bool ends = false; !ends;) {
      StepState now = {.step = ++step};
      part.assign(part.size(), static_cast<float>(step));
      if (facts) facts(rank, now);
      TESSERA_ASSIGN_OR_RETURN(const auto decision, manager->TrySave(now, state));
      ends = decision.end != EndReason::kNone;
      if (decision == SaveDecision()) continue;
      constexpr const char* kSaves[] = {"", " rolling", " permanent"};
      constexpr const char* kEnds[] = {"",           " last",     " signal",  " program",
                                       " stop file", " duration", " interval"};
      decisions.push_back(absl::StrCat(step, kSaves[static_cast<int>(decision.save)],
                                       kEnds[static_cast<int>(decision.end)]));
    }
    return manager->last_save();
  }

  void Clear() { storage_ = std::make_unique<MemoryStorage>(); }

  std::unique_ptr<MemoryStorage> storage_ = std::make_unique<MemoryStorage>();
};

TEST_F(CheckpointManagerTest, WhatOneRankKnowsDecidesForAll) {
  for (int who = 0; who < kRanks; ++who) {
    SCOPED_TRACE(who);
    const auto at_3 = [&](const std::function<void(StepState&)>& change) {
      return [=](int rank, StepState& now) {
        if (rank == who && now.step == 3) change(now);
      };
    };
    EXPECT_THAT(
        Train({.last_step = 9}, at_3([](StepState& now) { now.stop_signal = SIGTERM; })).decisions,
        ElementsAre("3 permanent signal"));
    Clear();
    EXPECT_THAT(
        Train({.last_step = 9}, at_3([](StepState& now) { now.program_ends = true; })).decisions,
        ElementsAre("3 permanent program"));
    Clear();
    const Run run = Train({.interval_steps = 3, .last_step = 5},
                          at_3([](StepState& now) { now.healthy = false; }));
    EXPECT_THAT(run.decisions, ElementsAre("4 permanent", "5 permanent last"));
    EXPECT_THAT(run.ends, Each(absl::OkStatus()));
    Clear();
  }
}

TEST_F(CheckpointManagerTest, TheStopFileOfOneRankEndsOneJob) {
  for (int who = 0; who < kRanks; ++who) {
    SCOPED_TRACE(who);
    const std::string path = absl::StrCat(::testing::TempDir(), "/stop-", who);
    std::filesystem::remove(path);
    std::ofstream(path) << 4;
    const auto reads = [&](int rank, CheckpointManagerOptions& options) {
      if (rank == who) options.stop_file_path = path;
    };
    EXPECT_THAT(Train({.last_step = 9}, nullptr, reads).decisions,
                ElementsAre("4 permanent stop file"));
    // Even where that checkpoint is lost, the request ends no other job.
    ASSERT_OK(storage_->DeleteTree("step-00000004"));
    EXPECT_THAT(Train({.last_step = 9}, nullptr, reads).decisions, ElementsAre("9 permanent last"));
    Clear();
  }
}

TEST_F(CheckpointManagerTest, SavesThatFailEndEveryRank) {
  // Saves in the background need a group of their own.
  ThreadGroupHub hub(kRanks);
  std::vector<std::unique_ptr<ThreadProcessGroup>> groups;
  for (int rank = 0; rank < kRanks; ++rank) {
    groups.push_back(std::make_unique<ThreadProcessGroup>(hub, rank));
  }
  const Run run = Train({.interval_steps = 1, .last_step = 1000}, nullptr,
                        [&](int rank, CheckpointManagerOptions& options) {
                          options.failures.max_failed_saves = 2;
                          options.background.emplace();
                          SaveOptions& save = options.background->save;
                          save.group = groups[rank].get();
                          save.timeout = absl::Seconds(20);
                          if (rank != 1) return;
                          save.before_commit = [] { return absl::DataLossError("no log"); };
                        });
  for (const absl::Status& end : run.ends) {
    EXPECT_TRUE(absl::IsAborted(end)) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr("2 saves in a row have failed"));
  }
  EXPECT_THAT(std::string(run.ends[0].message()), HasSubstr("rank 1: no log"));
}

TEST_F(CheckpointManagerTest, AJobThatDoesNotSaveEndsAllTheSame) {
  const Run run = Train({.saves = false, .interval_steps = 1, .last_step = 3});
  EXPECT_THAT(run.decisions, ElementsAre("3 last"));
  EXPECT_THAT(*storage_->List(""), IsEmpty());
}

TEST_F(CheckpointManagerTest, AJobWithoutSavesOrFolderMayBeLongWithoutCheckpoint) {
  CheckpointManagerOptions options;
  options.schedule = {.saves = false, .last_step = 3};
  options.failures.max_without_checkpoint = absl::ZeroDuration();
  ASSERT_OK_AND_ASSIGN(const auto manager, CheckpointManager::Open("", std::move(options)));
  std::vector<float> weight(kRows);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(manager->TrySave({.step = step}, OneTensor(weight)));
  }
  EXPECT_THAT(*manager->AbandonLater(1), IsEmpty());
}

// Continues, on every rank, from a step of which the folder has later ones.
TEST_F(CheckpointManagerTest, AJobAmongLaterStepsIsRefusedUntilTheyAreAbandoned) {
  Train({.interval_steps = 100, .last_step = 1000});
  const auto begin_at = [&](int64_t begin, bool abandons) {
    std::vector<absl::Status> ends(kRanks);
    RunRanks(kRanks, [&](ProcessGroup& group) {
      ends[group.rank()] = [&]() -> absl::Status {
        CheckpointManagerOptions options;
        options.save.group = &group;
        options.save.timeout = absl::Seconds(20);
        options.schedule = {.interval_steps = 100, .last_step = begin + 100};
        options.keep = {.newest = 2};
        const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), storage_.get());
        TESSERA_ASSIGN_OR_RETURN(const auto manager,
                                 CheckpointManager::Open(storage, nullptr, std::move(options)));
        manager->Begin(begin);
        if (abandons) TESSERA_RETURN_IF_ERROR(manager->AbandonLater(begin).status());
        std::vector<float> weight(kRows);
        for (int64_t step = begin + 1; step <= begin + 100; ++step) {
          TESSERA_RETURN_IF_ERROR(manager->TrySave({.step = step}, OneTensor(weight)).status());
        }
        return absl::OkStatus();
      }();
    });
    return ends;
  };
  for (const absl::Status& end : begin_at(800, /*abandons=*/false)) {
    EXPECT_TRUE(absl::IsFailedPrecondition(end)) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr("AbandonLater()"));
  }
  EXPECT_THAT(std::string(begin_at(800, false)[0].message()),
              HasSubstr("later steps (900, 1000) than this run starts from (800)"));
  EXPECT_EQ(CheckpointFolder(*storage_).List()->size(), 10u);
  EXPECT_THAT(begin_at(800, /*abandons=*/true), Each(absl::OkStatus()));
  EXPECT_EQ(CheckpointFolder(*storage_).FindLatest()->checkpoint.step, 900);
}

TEST_F(CheckpointManagerTest, Rank0AloneAbandonsLaterSteps) {
  RunRanks(kRanks, [&](ProcessGroup& group) {
    FaultInjectingStorage own(*storage_);
    CheckpointManagerOptions options;
    options.save.group = &group;
    const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), &own);
    ASSERT_OK_AND_ASSIGN(const auto manager,
                         CheckpointManager::Open(storage, nullptr, std::move(options)));
    EXPECT_OK(manager->AbandonLater(1));
    EXPECT_EQ(own.operation_count() > 0, group.rank() == 0);
  });
}

TEST_F(CheckpointManagerTest, LaterStepsAreLookedForOnceTheFolderCanBeListed) {
  std::vector<float> weight(kRows);
  ASSERT_OK(CheckpointFolder(*storage_).Save(5, OneTensor(weight)));
  FaultInjectingStorage faulty(*storage_);
  CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 7, .last_step = 1000};
  const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), &faulty);
  ASSERT_OK_AND_ASSIGN(const auto manager,
                       CheckpointManager::Open(storage, nullptr, std::move(options)));
  manager->Begin(5);
  EXPECT_OK(manager->TrySave({.step = 6}, OneTensor(weight)));
  manager->Begin(0);
  faulty.FailAt(faulty.operation_count(), absl::UnavailableError("no answer"), 1);
  EXPECT_OK(manager->TrySave({.step = 1}, OneTensor(weight)));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(manager->TrySave({.step = 2}, OneTensor(weight)).status()));
  ASSERT_OK(manager->AbandonLater(1));
  for (int64_t step = 3; step <= 7; ++step) {
    EXPECT_OK(manager->TrySave({.step = step}, OneTensor(weight)));
  }
  EXPECT_EQ(CheckpointFolder(*storage_).FindLatest()->checkpoint.step, 7);
  // A program that loads by itself, and never says where it begins, begins before its first step.
  ASSERT_OK_AND_ASSIGN(const auto next, JobSaves::Open(storage, nullptr, {}));
  EXPECT_EQ(next->Decide({.step = 8})->trouble, SaveTrouble::kNone);
}

// Memory or threads may be there at the next save; space will not.
TEST_F(CheckpointManagerTest, LackOfSpaceEndsAJobAtOnceAndLackOfMemoryDoesNot) {
  const auto trouble_after = [&](const std::function<void(FaultInjectingStorage&)>& fail) {
    MemoryStorage folder;
    FaultInjectingStorage faulty(folder);
    CheckpointManagerOptions options;
    options.background.emplace();
    options.schedule = {.interval_steps = 1, .last_step = 9};
    options.failures.max_failed_saves = 2;
    const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), &faulty);
    const auto manager = OrFail(JobSaves::Open(storage, nullptr, std::move(options)));
    fail(faulty);
    std::vector<float> weight(kRows);
    EXPECT_OK(manager->TrySave({.step = 1}, OneTensor(weight)));
    manager->Finish();
    EXPECT_TRUE(absl::IsResourceExhausted(manager->last_save())) << manager->last_save();
    return manager->Decide({.step = 2})->trouble;
  };
  const auto fails_everywhere = [](absl::Status status) {
    return [=](FaultInjectingStorage& faulty) {
      faulty.FailWhere([](const auto& /*operation*/) { return true; }, status);
    };
  };
  EXPECT_EQ(trouble_after([](auto& faulty) { faulty.SetDiskBytes(10); }), SaveTrouble::kNoRoom);
  EXPECT_EQ(trouble_after(fails_everywhere(NoSpaceError("full"))), SaveTrouble::kNoRoom);
  EXPECT_EQ(trouble_after(fails_everywhere(absl::ResourceExhaustedError("no memory"))),
            SaveTrouble::kNone);
}

// A save whose state is copied first, as from a device.
TEST_F(CheckpointManagerTest, ASaveThatIsDecidedUponIsInFlight) {
  CheckpointManagerOptions options;
  options.schedule = {.interval_steps = 7, .last_step = 1000};
  options.background.emplace();
  const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), storage_.get());
  ASSERT_OK_AND_ASSIGN(const auto manager, JobSaves::Open(storage, nullptr, std::move(options)));
  EXPECT_FALSE(manager->save_in_flight());
  EXPECT_EQ(manager->Decide({.step = 6})->save, SaveKind::kNone);
  EXPECT_FALSE(manager->save_in_flight());
  const auto fails = [] { return absl::DataLossError("no copy"); };
  EXPECT_TRUE(absl::IsDataLoss(manager->TrySave({.step = 7}, fails).status()));
  EXPECT_FALSE(manager->save_in_flight());
  // The counts of two ranks of which the other one has a signal.
  int counted = 0;
  ASSERT_OK_AND_ASSIGN(const SaveDecision decision,
                       manager->Decide({.step = 7}, [&](std::span<int64_t> counts) {
                         counted = static_cast<int>(counts.size());
                         return absl::OkStatus();
                       }));
  EXPECT_GT(counted, 0);
  EXPECT_EQ(decision.save, SaveKind::kPermanent);
  EXPECT_TRUE(manager->save_in_flight());
  EXPECT_THAT(manager->Poll(), IsEmpty());
  manager->Refuse(7, absl::InternalError("a copy"));
  const std::vector<SaveOutcome> outcomes = manager->Finish();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].step, 7);
  EXPECT_FALSE(manager->save_in_flight());
  EXPECT_TRUE(absl::IsInternal(manager->last_save())) << manager->last_save();
}

TEST_F(CheckpointManagerTest, AJobThatDoesNotSaveIsToldSo) {
  CheckpointManagerOptions options;
  options.schedule.saves = false;
  ASSERT_OK_AND_ASSIGN(const auto manager, JobSaves::Open("", std::move(options)));
  std::vector<float> weight(kRows);
  const absl::Status saved = manager->Save({.step = 1}, OneTensor(weight));
  EXPECT_TRUE(absl::IsFailedPrecondition(saved)) << saved;
  manager->Refuse(2, absl::InternalError("a copy"));
  const std::vector<SaveOutcome> outcomes = manager->Poll();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(absl::IsInternal(outcomes[0].report.status()));
  // Nothing is in flight.
  manager->Prepare(OneTensor(weight));
  manager->WaitUntilCopied(weight.data(), kRows * sizeof(float));
  manager->WaitUntilAllCopied();
}

TEST_F(CheckpointManagerTest, ARankThatRefusesASaveInTheForegroundFailsItForAll) {
  RunRanks(kRanks, [&](ProcessGroup& group) {
    CheckpointManagerOptions options;
    options.save.group = &group;
    options.save.timeout = absl::Seconds(20);
    const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), storage_.get());
    ASSERT_OK_AND_ASSIGN(const auto manager, JobSaves::Open(storage, nullptr, std::move(options)));
    std::vector<float> weight(kRows);
    absl::Status status;
    if (group.rank() == 1) {
      manager->Refuse(3, absl::DataLossError("a bad weight"));
      status = manager->last_save();
    } else {
      status = manager->Save({.step = 3}, OneTensor(weight));
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: a bad weight"));
  });
}

// A folder whose lock a job loses, as it loses the lease of an object store while it stands still.
class LosableFolder {
 public:
  LosableFolder() { fs::remove_all(root_); }
  ~LosableFolder() { close(other_); }

  void Lose() {
    const std::string file = root_ + "/" + FolderLock::kFileName;
    fs::remove(file);
    other_ = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    EXPECT_EQ(flock(other_, LOCK_EX), 0);
  }
  static absl::Status Lost(const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("was deleted or replaced"));
    return status;
  }
  const std::string& root() const { return root_; }

 private:
  const std::string root_ = ::testing::TempDir() + "/losable";
  int other_ = -1;
};

TEST(LostFolderTest, AFolderThatAnotherJobHasIsOpenedByNoRank) {
  LosableFolder folder;
  fs::create_directories(folder.root());
  folder.Lose();
  RunRanks(kRanks, [&](ProcessGroup& group) {
    CheckpointManagerOptions options;
    options.save.group = &group;
    options.lock_wait = absl::ZeroDuration();
    const absl::Status opened = JobSaves::Open(folder.root(), std::move(options)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(opened)) << opened;
    EXPECT_THAT(std::string(opened.message()),
                HasSubstr(" is in use: another process saves there"));
  });
}

TEST(LostFolderTest, AJobThatLosesItsFolderWhileItWaitsForARankDoesNotCommit) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    LosableFolder folder;
    absl::Notification first_is_done;
    ThreadGroupHub hub(kRanks);
    RunRanks(kRanks, [&](ProcessGroup& group) {
      const int rank = group.rank();
      ThreadProcessGroup saving(hub, rank);
      CheckpointManagerOptions options;
      options.save.group = &group;
      options.save.timeout = absl::Seconds(20);
      if (in_background) options.background.emplace();
      SaveOptions& save = in_background ? options.background->save : options.save;
      if (in_background) save.group = &saving;
      save.timeout = absl::Seconds(20);
      save.before_commit = [&, rank] {
        if (rank == 0) first_is_done.Notify();
        if (rank != 1) return absl::OkStatus();
        first_is_done.WaitForNotification();
        folder.Lose();
        return absl::OkStatus();
      };
      ASSERT_OK_AND_ASSIGN(const auto manager, JobSaves::Open(folder.root(), std::move(options)));
      std::vector<float> weight(kRows);
      absl::Status saved = manager->Save({.step = 3}, OneTensor(weight));
      manager->Finish();
      if (in_background) saved = manager->last_save();
      LosableFolder::Lost(saved).IgnoreError();
    });
    ASSERT_OK_AND_ASSIGN(const auto seen, CheckpointFolder::Open(folder.root()));
    EXPECT_THAT(*seen.List(), IsEmpty());
  }
}

TEST(LostFolderTest, AJobThatHasLostItsFolderDeletesNothing) {
  LosableFolder folder;
  CheckpointManagerOptions options;
  options.keep.newest = 1;
  options.on_commit = [&](const SaveReport& report) {
    if (report.directory == "step-00000004") folder.Lose();
  };
  ASSERT_OK_AND_ASSIGN(const auto manager, JobSaves::Open(folder.root(), std::move(options)));
  std::vector<float> weight(kRows);
  const StateDict state = OneTensor(weight);
  for (const int64_t step : {1, 2}) {
    ASSERT_OK(manager->Save({.step = step}, state, SaveKind::kRolling));
  }
  for (const int64_t step : {3, 4}) ASSERT_OK(manager->Save({.step = step}, state));
  const std::vector<SaveOutcome> outcomes = manager->Poll();
  EXPECT_THAT(outcomes.back().report->note, HasSubstr("older checkpoints are still there"));
  EXPECT_TRUE(fs::exists(folder.root() + "/step-00000003/manifest.pb"));
  LosableFolder::Lost(manager->Save({.step = 5}, state, SaveKind::kRolling)).IgnoreError();
  for (const char* kept : {"rolling-0/step-00000001", "rolling-1/step-00000002"}) {
    EXPECT_TRUE(fs::exists(folder.root() + "/" + kept + "/manifest.pb")) << kept;
  }
}

TEST(OpenCheckpointManagerTest, AFolderIsCheckedBeforeTheJobBegins) {
  const std::string root = ::testing::TempDir() + "/open_manager";
  fs::remove_all(root);
  std::vector<float> weight(kRows);
  ASSERT_OK_AND_ASSIGN(const auto folder, CheckpointFolder::Open(root, {.create_root = true}));
  ASSERT_OK(folder.Save(1, OneTensor(weight)));
  const auto open = [&](const std::string& name, bool saves) {
    CheckpointManagerOptions options;
    options.schedule.saves = saves;
    return CheckpointManager::Open(name, std::move(options)).status();
  };
  const std::string checkpoint = root + "/step-00000001";
  EXPECT_EQ(open(checkpoint, /*saves=*/true),
            absl::InvalidArgumentError(checkpoint +
                                       " is a single checkpoint: expected the folder above it"));
  EXPECT_OK(open(root + "/missing", /*saves=*/false));
  EXPECT_OK(open("", /*saves=*/false));
  EXPECT_FALSE(open("", /*saves=*/true).ok());
}

}  // namespace
}  // namespace tessera::ckpt
