// Which slot the next rolling checkpoint takes, also where slots are links; what cannot be deleted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/errno_status.h"
#include "base/no_space.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manager_options.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/testing/test_state.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

// A slot's checkpoint that a user has moved to another disk, and linked; then the slot itself.
TEST(LinkedSlotTest, LinksAreLeftAloneAndRollingSavesGoOn) {
  const TestFolder folder;
  const auto storage = *OpenPosixStorage(folder.path());
  const auto save_rolling = [&](int64_t step) {
    ASSERT_OK_AND_ASSIGN(const std::string slot, EmptyRollingSlot(*storage));
    std::vector<float> elements(64, static_cast<float>(step));
    ASSERT_OK(
        SaveNow(*storage, {.step = step}, OneTensor(elements), {}, {.choose_root = In(slot)}));
  };
  const auto move_away_and_link = [&](const std::string& path) {
    std::filesystem::rename(folder.path() + "/" + path, folder.path() + "/elsewhere");
    std::filesystem::create_symlink(folder.path() + "/elsewhere", folder.path() + "/" + path);
  };
  for (const int64_t step : {25, 50}) save_rolling(step);
  move_away_and_link("rolling-0/step-00000025");
  for (const int64_t step : {75, 100, 125}) save_rolling(step);
  EXPECT_THAT(*storage->List("rolling-0"), ElementsAre("step-00000025/", "step-00000125/"));
  EXPECT_THAT(*storage->List("rolling-1"), ElementsAre("step-00000100/"));
  EXPECT_OK(ReadIntact(*storage, "elsewhere"));

  std::filesystem::remove(folder.path() + "/rolling-0/step-00000025");
  std::filesystem::remove_all(folder.path() + "/elsewhere");
  move_away_and_link("rolling-0");
  for (const int64_t step : {150, 175}) save_rolling(step);
  EXPECT_THAT(*storage->List("elsewhere"), ElementsAre("step-00000125/"));
  EXPECT_THAT(*storage->List("rolling-1"), ElementsAre("step-00000150/", "step-00000175/"))
      << "the newest good one stays beside the next";

  std::filesystem::remove(folder.path() + "/rolling-0");
  std::filesystem::remove_all(folder.path() + "/elsewhere");
  move_away_and_link("rolling-1");
  for (const int64_t step : {200, 225}) save_rolling(step);
  EXPECT_THAT(*storage->List("elsewhere"), ElementsAre("step-00000150/", "step-00000175/"));
  EXPECT_THAT(*storage->List("rolling-0"), ElementsAre("step-00000200/", "step-00000225/"));

  std::filesystem::remove_all(folder.path() + "/rolling-0");
  std::filesystem::create_symlink(folder.path() + "/elsewhere", folder.path() + "/rolling-0");
  for (const int64_t step : {250, 275}) save_rolling(step);
  EXPECT_THAT(*storage->List("elsewhere"),
              ElementsAre("step-00000150/", "step-00000175/", "step-00000250/", "step-00000275/"));
}

// Makes what deletes one of these fail.
void Protect(FaultInjectingStorage& storage, const std::vector<std::string>& prefixes) {
  storage.FailWhere(
      [prefixes](const Operation& operation) {
        const bool deletes = operation.kind == OperationKind::kDelete ||
                             operation.kind == OperationKind::kDeleteTree;
        return deletes && std::ranges::any_of(prefixes, [&](const std::string& prefix) {
                 return operation.path.starts_with(prefix);
               });
      },
      absl::PermissionDeniedError("protected"));
}

std::unique_ptr<JobSaves> OpenJob(Storage& storage, const RetentionOptions& keep = {}) {
  const std::shared_ptr<Storage> shared(std::shared_ptr<Storage>(), &storage);
  CheckpointManagerOptions options;
  options.keep = keep;
  return OrFail(JobSaves::Open(shared, nullptr, options));
}

TEST(RollingSlotTest, SavesInTheBackgroundGoToTheSlotsToo) {
  MemoryStorage memory;
  CheckpointManagerOptions options;
  options.background.emplace();
  options.schedule = {.interval_steps = 3, .rolling_interval_steps = 1, .last_step = 9};
  const std::shared_ptr<Storage> shared(std::shared_ptr<Storage>(), &memory);
  const auto manager = OrFail(JobSaves::Open(shared, nullptr, options));
  std::vector<float> elements(64);
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_OK(manager->TrySave({.step = step}, OneTensor(elements)));
    manager->Finish();
  }
  EXPECT_THAT(*memory.List(""), ElementsAre("rolling-0/", "rolling-1/", "step-00000003/"));
}

TEST(RollingSlotTest, ACheckpointThatCannotBeDeletedIsInNoSavesWay) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  std::vector<float> elements(64);
  const auto save_rolling = [&](int64_t step) {
    absl::Status undeleted;
    EXPECT_OK(SaveNow(storage, {.step = step}, OneTensor(elements), {},
                      {.choose_root = In(OrFail(EmptyRollingSlot(storage, "", &undeleted)))}));
    return undeleted;
  };
  for (const int64_t step : {25, 50}) EXPECT_OK(save_rolling(step));
  Protect(storage, {""});
  EXPECT_TRUE(absl::IsPermissionDenied(save_rolling(75)));
  EXPECT_THAT(*memory.List("rolling-0"), ElementsAre("step-00000025/", "step-00000075/"));
  storage.ClearFaults();
  for (const int64_t step : {100, 125}) EXPECT_OK(save_rolling(step));
  EXPECT_THAT(*memory.List("rolling-0"), ElementsAre("step-00000125/"));
}

TEST(RollingSlotTest, EachSaveOfAJobSaysWhatItCouldNotDelete) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  const auto job = OpenJob(storage);
  std::vector<float> elements(64);
  const auto note_of = [&](int64_t step) {
    EXPECT_OK(job->Save({.step = step}, OneTensor(elements), SaveKind::kRolling));
    return OrFail(job->Finish().back().report).note;
  };
  for (const int64_t step : {25, 50}) EXPECT_EQ(note_of(step), "");
  Protect(storage, {""});
  EXPECT_THAT(note_of(75),
              MatchesRegex("older checkpoints are still there: [^;]*: protected[^;]*"));
  storage.ClearFaults();
  for (const int64_t step : {100, 125}) EXPECT_EQ(note_of(step), "");
}

TEST(RetentionTest, ASaveThatLacksRoomSaysWhatCouldNotBeDeleted) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  storage.SetDiskBytes(1 << 20);
  const auto job = OpenJob(storage, {.newest = 1});
  std::vector<float> elements(1000), more(1500);
  for (const int64_t step : {10, 20, 25, 30}) {
    EXPECT_OK(CheckpointFolder(storage).Save(step, OneTensor(elements)));
  }
  ASSERT_OK(WriteAll(storage, "others", std::string(*storage.FreeBytes() - 100, 'x')));
  Protect(storage, {"step-00000010.disc", "step-00000020.disc"});
  const absl::Status full = job->Save({.step = 40}, OneTensor(more));
  EXPECT_TRUE(IsNoSpace(full)) << full;
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("the checkpoint needs "), HasSubstr(": Delete step-00000010.disc"),
                    HasSubstr(": protected"), HasSubstr("step-00000025 made room for step 40")));
  storage.ClearFaults();
  EXPECT_OK(job->Save({.step = 40}, OneTensor(more)));
}

TEST(RetentionTest, ASaveThatLacksRoomNamesWhatWasRenamed) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  storage.SetDiskBytes(20'000);
  const auto job = OpenJob(storage, {.newest = 1});
  std::vector<float> elements(3000);
  EXPECT_OK(CheckpointFolder(storage).Save(10, OneTensor(elements)));
  ASSERT_OK(storage.MakeDirectory("step-00000020.abandoned"));
  const absl::Status full = job->Save({.step = 15}, OneTensor(elements));
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("until you delete it: step-00000020.abandoned"));
}

TEST(RetentionTest, RoomIsMadeOfWhatCanBeDeleted) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  storage.SetDiskBytes(1 << 20);
  std::vector<float> elements(64);
  for (const int64_t step : {10, 20, 30}) {
    EXPECT_OK(CheckpointFolder(storage).Save(step, OneTensor(elements)));
  }
  ASSERT_OK(memory.MakeDirectory("step-00000001.discarded-00000001"));
  Protect(storage, {"step-00000010.disc", "step-00000001.disc"});
  Retention retention(storage, {.newest = 1});
  absl::Status undeleted;
  const auto make_room = [&] {
    return OrFail(
        retention.MakeRoom({40, false, *storage.FreeBytes() + 1}, absl::Now(), &undeleted));
  };
  EXPECT_THAT(make_room(), ElementsAre("step-00000020"));
  EXPECT_TRUE(absl::IsPermissionDenied(undeleted)) << undeleted;
  EXPECT_THAT(make_room(), IsEmpty());
  EXPECT_TRUE(*IsCommitted(memory, "step-00000010"));
}

// As many checkpoints fit as under a quota that the storage does not tell.
void AllowCheckpoints(FaultInjectingStorage& storage, MemoryStorage& memory, size_t most,
                      int error) {
  storage.ClearFaults();
  storage.FailWhere(
      [&memory, most](const Operation& operation) {
        return operation.kind == OperationKind::kCreate &&
               CheckpointFolder(memory).List()->size() >= most;
      },
      ErrnoStatus(error));
}

TEST(RetentionTest, AfterARefusalSavesMakeRoomBeforeTheyWrite) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    MemoryStorage memory;
    FaultInjectingStorage storage(memory);
    ThreadGroupHub hub(2), saver_hub(2);
    RunRanks(2, [&](ProcessGroup& group) {
      ThreadProcessGroup ranks(hub, group.rank()), savers(saver_hub, group.rank());
      CheckpointManagerOptions options;
      options.save.group = &ranks;
      options.keep.newest = 2;
      if (in_background) options.background = {.save = {.group = &savers}};
      const std::shared_ptr<Storage> shared(std::shared_ptr<Storage>(), &storage);
      ASSERT_OK_AND_ASSIGN(const auto job, JobSaves::Open(shared, nullptr, options));
      const auto allow = [&](size_t most, int error) {
        ASSERT_OK(AgreeOnStatus(group, absl::OkStatus(), absl::Minutes(1)));
        if (group.rank() == 0) AllowCheckpoints(storage, memory, most, error);
        ASSERT_OK(AgreeOnStatus(group, absl::OkStatus(), absl::Minutes(1)));
      };
      std::vector<float> elements(64);
      const auto save = [&](int64_t step) {
        const absl::Status now = job->Save({.step = step}, OneTensor(elements));
        job->Finish();
        return in_background ? job->last_save() : now;
      };
      const auto decide = [&](int64_t step) { return OrFail(job->Decide({.step = step})).trouble; };
      allow(2, EDQUOT);
      for (const int64_t step : {1, 2}) EXPECT_OK(save(step));
      // In the foreground, the state is still what it was: the save makes room, and succeeds.
      EXPECT_EQ(IsNoSpace(save(3)), in_background);
      EXPECT_EQ(CheckpointFolder(memory).List()->size(), 2u) << "nothing makes room for no save";
      EXPECT_EQ(decide(3), SaveTrouble::kNone);
      EXPECT_OK(save(4));
      // The next one tests whether the lack has passed.
      EXPECT_EQ(IsNoSpace(save(5)), in_background);
      EXPECT_EQ(decide(5), SaveTrouble::kNone);
      for (const int64_t step : {6, 7}) EXPECT_OK(save(step));
      // Nothing but the newest good one would make room.
      allow(1, EDQUOT);
      EXPECT_TRUE(IsNoSpace(save(8)));
      EXPECT_EQ(decide(8), in_background ? SaveTrouble::kNoRoom : SaveTrouble::kNone);
      // No deletion makes files smaller.
      allow(2, EFBIG);
      EXPECT_OK(save(9));
      EXPECT_TRUE(IsNoSpace(save(10)));
      EXPECT_EQ(decide(10), in_background ? SaveTrouble::kNoRoom : SaveTrouble::kNone);
    });
    EXPECT_EQ(CheckpointFolder(memory).FindLatest()->checkpoint.step, 9);
  }
}

// Others fill the disk while one save writes.
TEST(RetentionTest, ALackThatPassesCostsNoLaterSaveACheckpoint) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  const auto job = OpenJob(storage, {.newest = 2});
  std::vector<float> elements(64);
  const auto save = [&](int64_t step, SaveKind kind) {
    EXPECT_OK(job->Save({.step = step}, OneTensor(elements), kind));
    return OrFail(job->Finish().back().report).note;
  };
  for (const int64_t step : {10, 20}) EXPECT_EQ(save(step, SaveKind::kPermanent), "");
  EXPECT_EQ(save(25, SaveKind::kRolling), "");
  AllowCheckpoints(storage, memory, 2, ENOSPC);
  EXPECT_THAT(save(30, SaveKind::kRolling),
              AllOf(HasSubstr("the first attempt failed: "),
                    HasSubstr("the disk is full: step-00000010 made room for step 30")));
  storage.ClearFaults();
  for (const int64_t step : {40, 50}) EXPECT_EQ(save(step, SaveKind::kPermanent), "");
  for (const int64_t step : {55, 57}) EXPECT_EQ(save(step, SaveKind::kRolling), "");
  EXPECT_EQ(CheckpointFolder(memory).List()->size(), 2u);
}

// No later save would make room.
TEST(RetentionTest, TheLastSaveInTheBackgroundMakesRoomAndTriesAgain) {
  MemoryStorage memory;
  FaultInjectingStorage storage(memory);
  const std::shared_ptr<Storage> shared(std::shared_ptr<Storage>(), &storage);
  CheckpointManagerOptions options;
  options.keep.newest = 1;
  options.background.emplace();
  options.schedule = {.interval_steps = 2, .last_step = 3};
  ASSERT_OK_AND_ASSIGN(const auto job, JobSaves::Open(shared, nullptr, options));
  std::vector<float> elements(64);
  for (const int64_t step : {1, 2}) {
    EXPECT_OK(CheckpointFolder(memory).Save(step, OneTensor(elements)));
  }
  AllowCheckpoints(storage, memory, 2, EDQUOT);
  EXPECT_OK(job->TrySave({.step = 3}, OneTensor(elements)));
  EXPECT_THAT(job->Finish(), SizeIs(1));
  EXPECT_OK(job->last_save());
  EXPECT_EQ(CheckpointFolder(memory).FindLatest()->checkpoint.step, 3);
}

TEST(RollingTest, ReplacesAnEmptySlotElseTheOlderOne) {
  EXPECT_EQ(ChooseRollingSlot({}), 0);
  EXPECT_EQ(ChooseRollingSlot({7, std::nullopt}), 1);
  EXPECT_EQ(ChooseRollingSlot({std::nullopt, 7}), 0);
  EXPECT_EQ(ChooseRollingSlot({7, 9}), 0);
  EXPECT_EQ(ChooseRollingSlot({9, 7}), 1);
  EXPECT_EQ(ChooseRollingSlot({7, 7}), 0);
  EXPECT_EQ(ChooseRollingSlot({0, std::nullopt}), 1);
  for (const char* attempt : {"01234567", "89abcdef"}) EXPECT_TRUE(IsRollingAttempt(attempt));
  for (const char* other : {"0123456g", "0123456/", "0123456:", "0123456`", "0123456"}) {
    EXPECT_FALSE(IsRollingAttempt(other)) << other;
  }
}

}  // namespace
}  // namespace tessera::ckpt
