#include "checkpoint/manager/saved_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/read_lock.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/testing/test_state.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SavedCheckpointsTest : public ::testing::Test {
 protected:
  explicit SavedCheckpointsTest(bool renames_directories = true) : memory_(renames_directories) {}

  // Saves `step` with that number in every element.
  void Save(int64_t step, const std::string& root = "", const Manifest& metadata = {}) {
    std::vector<float> elements(64, static_cast<float>(step));
    ASSERT_OK_AND_ASSIGN(const auto saved,
                         SaveNow(storage_, {.step = step, .metadata = ToMetadata(metadata)},
                                 OneTensor(elements), {}, {.choose_root = In(root)}));
  }
  void SaveRolling(int64_t step) {
    ASSERT_OK_AND_ASSIGN(const std::string slot, EmptyRollingSlot(storage_));
    Save(step, slot);
  }
  void SaveWithHealth(int64_t step, bool finite, bool sane,
                      std::optional<double> validation_loss = std::nullopt) {
    Manifest metadata;
    StateHealth& health = *metadata.mutable_trainer()->mutable_health();
    health.set_state_is_finite(finite);
    health.set_loss_is_sane(sane);
    if (validation_loss.has_value()) health.set_validation_loss(*validation_loss);
    Save(step, "", metadata);
  }

  std::string Contents(const std::string& path) {
    return ReadAll(memory_, path, 1 << 20).value_or("(nothing)");
  }
  // Changes the bytes of a file.
  void Damage(const std::string& path, const std::function<void(std::string&)>& change) {
    std::string bytes = Contents(path);
    change(bytes);
    ASSERT_OK(memory_.Delete(path));
    ASSERT_OK(WriteAll(memory_, path, bytes));
  }
  std::vector<std::string> Names(const std::string& path) {
    return memory_.List(path).value_or(std::vector<std::string>());
  }
  // The only data file of a checkpoint.
  std::string Data(const std::string& checkpoint) {
    for (const std::string& name : Names(checkpoint)) {
      if (name.starts_with("model-")) return absl::StrCat(checkpoint, "/", name);
    }
    return "(nothing)";
  }
  // "step-00000003" and so on, of permanent checkpoints, as their numbers.
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto list = CheckpointFolder(memory_).List();
    EXPECT_OK(list);
    if (list.ok()) {
      for (const CheckpointInfo& info : *list) steps.push_back(info.step);
    }
    return steps;
  }
  // The step that a run resumes from; -1: none.
  int64_t Take() {
    set_aside_.clear();
    SingleProcessGroup alone;
    const std::shared_ptr<Storage> storage(std::shared_ptr<Storage>(), &storage_);
    const auto resumed = ResumeFromLatest(storage, alone, {.ignore_no_valid = true},
                                          [](const Checkpoint&) { return absl::OkStatus(); });
    EXPECT_OK(resumed);
    if (!resumed.ok()) return -1;
    set_aside_ = resumed->skipped;
    return resumed->checkpoint.has_value() ? resumed->checkpoint->step() : -1;
  }

  MemoryStorage memory_;
  FaultInjectingStorage storage_{memory_};
  std::vector<SkippedCheckpoint> set_aside_;
};

TEST_F(SavedCheckpointsTest, RollingSlotsAreOverwrittenInTurnAlsoAfterARestart) {
  for (const int64_t step : {25, 50, 75}) SaveRolling(step);
  EXPECT_THAT(Names("rolling-0"), ElementsAre("step-00000075/"));
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000050/"));
  // Nothing is remembered between calls: what is on the disk decides.
  SaveRolling(100);
  EXPECT_THAT(Names("rolling-0"), ElementsAre("step-00000075/"));
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000100/"));
}

TEST_F(SavedCheckpointsTest, AnIncompleteSlotIsTheNextOne) {
  SaveRolling(25);
  SaveRolling(50);
  ASSERT_OK(memory_.Delete("rolling-1/step-00000050/manifest.pb"));
  SaveRolling(75);
  EXPECT_THAT(Names("rolling-0"), ElementsAre("step-00000025/"));
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000075/"));
}

// The newer one was damaged after it was saved.
TEST_F(SavedCheckpointsTest, TheLastGoodRollingCheckpointIsNotReplaced) {
  for (const int64_t step : {10, 25, 50}) SaveRolling(step);
  Damage(Data("rolling-0/step-00000050"), [](std::string& s) { s.pop_back(); });
  SaveRolling(75);
  EXPECT_THAT(Names("rolling-0"), ElementsAre("step-00000075/"));
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000025/"));
  // A permanent one that is newer is as good.
  Damage(Data("rolling-0/step-00000075"), [](std::string& s) { s.pop_back(); });
  Save(60);
  SaveRolling(80);
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000080/"));
}

// Another user's file, which stays so.
TEST_F(SavedCheckpointsTest, ARollingCheckpointThatCannotBeReadStaysAndSavesGoOn) {
  for (const int64_t step : {25, 50}) SaveRolling(step);
  const auto deny = [&](const std::string& slot) {
    storage_.ClearFaults();
    storage_.FailWhere(
        [slot](const Operation& operation) {
          return operation.kind == OperationKind::kOpen && operation.path.starts_with(slot);
        },
        absl::PermissionDeniedError("403"));
  };
  deny("rolling-1/");
  EXPECT_EQ(*EmptyRollingSlot(storage_), "rolling-0");
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000050/"));
  storage_.ClearFaults();
  SaveRolling(75);
  // It may be the only good one.
  Damage(Data("rolling-0/step-00000075"), [](std::string& s) { s.pop_back(); });
  deny("rolling-1/");
  EXPECT_EQ(*EmptyRollingSlot(storage_), "rolling-0");
  EXPECT_THAT(Names("rolling-1"), ElementsAre("step-00000050/"));
}

TEST_F(SavedCheckpointsTest, NewestFirstAndPermanentBeforeRolling) {
  Save(50);
  Save(100);
  Save(75, "rolling-0");
  Save(100, "rolling-1");
  ASSERT_OK_AND_ASSIGN(const auto all, ListForResume(storage_));
  EXPECT_THAT(all, ElementsAre(CheckpointInfo{100, "step-00000100", false},
                               CheckpointInfo{100, "rolling-1/step-00000100", true},
                               CheckpointInfo{75, "rolling-0/step-00000075", true},
                               CheckpointInfo{50, "step-00000050", false}));
  MemoryStorage empty;
  EXPECT_TRUE(ListForResume(empty)->empty());
}

TEST_F(SavedCheckpointsTest, WhereAllAreDamagedNothingIsLeft) {
  Save(50);
  SaveRolling(75);
  for (const char* manifest :
       {"step-00000050/manifest.pb", "rolling-0/step-00000075/manifest.pb"}) {
    Damage(manifest, [](std::string& s) { s.clear(); });
  }
  EXPECT_EQ(Take(), -1);
  EXPECT_EQ(set_aside_.size(), 2u);
  EXPECT_THAT(Names("rolling-0"), ElementsAre("step-00000075.damaged/"));
  // The slot can be used again, and what was set aside stays.
  SaveRolling(60);
  EXPECT_EQ(Take(), 60);
  EXPECT_THAT(Names("rolling-0"), ElementsAre("step-00000060/", "step-00000075.damaged/"));
}

class ObjectStoreTest : public SavedCheckpointsTest {
 protected:
  ObjectStoreTest() : SavedCheckpointsTest(/*renames_directories=*/false) {}
};

TEST_F(ObjectStoreTest, AStorageThatCannotRenameDirectoriesRenamesTheManifest) {
  Save(50);
  Save(100);
  Damage(Data("step-00000100"), [](std::string& s) { s.pop_back(); });
  // Repeated late, it would delete the manifest of a later save of this step.
  storage_.FailWhere(
      [](const Operation& operation) { return operation.kind == OperationKind::kDelete; },
      absl::InternalError("a deletion"));
  EXPECT_EQ(Take(), 50);
  EXPECT_THAT(Steps(), ElementsAre(50));
  EXPECT_THAT(Names("step-00000100"), ElementsAre("manifest.pb", "manifest.pb.damaged",
                                                  "manifest.pb.fenced", HasSubstr("model-")));
}

TEST_F(ObjectStoreTest, TheSignatureOfAQuarantinedCheckpointStays) {
  Save(50);
  for (const char* word : {"abandoned", "abandoned-2"}) {
    Save(100);
    ASSERT_OK(WriteAll(memory_, "step-00000100/manifest.sig", word));
    EXPECT_OK(AbandonLater(storage_, 50));
  }
  Save(100);
  Save(150);
  ASSERT_OK(Retention(storage_, {.newest = 1}).Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(150));
  EXPECT_EQ(Contents("step-00000100/manifest.sig"), "(nothing)");
  EXPECT_EQ(Contents("step-00000100/manifest.sig.abandoned"), "abandoned");
  EXPECT_EQ(Contents("step-00000100/manifest.sig.abandoned-2"), "abandoned-2");
}

TEST_F(SavedCheckpointsTest, NoLaterCheckpointIsForgottenBecauseItCannotBeListed) {
  for (const int64_t step : {20, 40, 60}) Save(step);
  storage_.FailWhere(
      [](const Operation& operation) {
        return operation.kind == OperationKind::kList && operation.path == "step-00000040";
      },
      absl::UnavailableError("no answer"));
  EXPECT_TRUE(absl::IsUnavailable(AbandonLater(storage_, 20).status()));
  EXPECT_THAT(*AbandonLater(storage_, 40), ElementsAre("step-00000060.abandoned"));
}

TEST_F(SavedCheckpointsTest, RetentionNeverDeletesTheNewestGoodOne) {
  SaveWithHealth(10, true, true);
  SaveWithHealth(20, true, true);
  SaveWithHealth(30, false, true);
  SaveWithHealth(40, true, false);
  Retention retention(storage_, {.newest = 1});
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(20, 40));
  // One that is damaged is not good, whatever it states.
  SaveWithHealth(50, true, true);
  Damage(Data("step-00000050"), [](std::string& s) { s.pop_back(); });
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(20, 40, 50)) << "a damaged one does not count";
  SaveWithHealth(60, true, true);
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(60));
}

TEST_F(SavedCheckpointsTest, PruneKeepsTheNewestHealthyOne) {
  SaveWithHealth(5, true, true);
  SaveWithHealth(10, true, true);
  SaveWithHealth(20, false, true);
  SaveWithHealth(30, true, false);
  const CheckpointFolder saved(storage_);
  ASSERT_OK(saved.Prune(2));
  EXPECT_THAT(Steps(), ElementsAre(10, 20, 30));
  ASSERT_OK(saved.Prune(1));
  EXPECT_THAT(Steps(), ElementsAre(10, 30));
  EXPECT_EQ(saved.FindLatest()->checkpoint.step, 10);
  ASSERT_OK(memory_.DeleteTree("step-00000010"));
  SaveWithHealth(20, false, true);
  ASSERT_OK(saved.Prune(1));
  EXPECT_THAT(Steps(), ElementsAre(30)) << "none is healthy";
}

// Another process replaces a checkpoint whose manifest this one has read: the new one is the best.
TEST_F(SavedCheckpointsTest, RetentionKeepsWhatHasReplacedTheCheckpointThatItRead) {
  Retention retention(storage_, {.newest = 1, .best = 1});
  SaveWithHealth(20, true, true, 2.0);
  SaveWithHealth(30, true, true, 3.0);
  ASSERT_OK(retention.Apply(absl::Now()));
  ASSERT_OK(memory_.DeleteTree("step-00000030"));
  SaveWithHealth(30, true, true, 1.0);
  SaveWithHealth(40, true, true, 4.0);
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(20, 30, 40));
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(30, 40));
}

// The best one cannot be read for a while: it stays, that is said, and it counts again afterwards.
TEST_F(SavedCheckpointsTest, RetentionKeepsWhatItCannotReadAndReadsItAgain) {
  SaveWithHealth(10, true, true, 1.0);
  SaveWithHealth(20, true, true, 2.0);
  for (const absl::Status& error :
       {absl::PermissionDeniedError("403"), absl::UnavailableError("no answer")}) {
    for (const std::string& file :
         {std::string("step-00000010/manifest.pb"), Data("step-00000010")}) {
      SCOPED_TRACE(absl::StrCat(file, " ", error.message()));
      SaveWithHealth(30, true, true, 3.0);
      storage_.FailWhere(
          [&](const Operation& operation) {
            return operation.kind == OperationKind::kOpen && operation.path == file;
          },
          error);
      Retention retention(storage_, {.newest = 1, .best = 1});
      const absl::Status applied = retention.Apply(absl::Now());
      EXPECT_EQ(applied.code(), error.code()) << applied;
      EXPECT_THAT(std::string(applied.message()), HasSubstr(file));
      EXPECT_THAT(Steps(), ::testing::Contains(10));
      storage_.ClearFaults();
      ASSERT_OK(retention.Apply(absl::Now()));
      EXPECT_THAT(Steps(), ElementsAre(10, 30));
      ASSERT_OK(memory_.DeleteTree("step-00000030"));
      SaveWithHealth(20, true, true, 2.0);
    }
  }
}

TEST_F(SavedCheckpointsTest, NoRoomIsMadeOfWhatCannotBeRead) {
  storage_.SetDiskBytes(1 << 20);
  for (const int64_t step : {10, 20, 30}) SaveWithHealth(step, true, true);
  storage_.FailWhere(
      [](const Operation& operation) {
        return operation.kind == OperationKind::kOpen &&
               operation.path == "step-00000010/manifest.pb";
      },
      absl::UnavailableError("no answer"));
  Retention retention(storage_, {.newest = 1});
  ASSERT_OK_AND_ASSIGN(const auto deleted,
                       retention.MakeRoom({40, false, *storage_.FreeBytes() + 1}, absl::Now()));
  EXPECT_THAT(deleted, ElementsAre("step-00000020"));
  EXPECT_THAT(Steps(), ElementsAre(10, 30));
}

TEST_F(SavedCheckpointsTest, DamagedOnesMakeRoom) {
  storage_.SetDiskBytes(1 << 20);
  for (const int64_t step : {20, 30, 40, 50}) SaveWithHealth(step, true, true);
  Damage(Data("step-00000030"), [](std::string& bytes) { bytes.pop_back(); });
  Damage("step-00000040/manifest.pb", [](std::string& bytes) { bytes.back() ^= 1; });
  // A user was still copying this one when it was first read.
  const std::string whole = Contents(Data("step-00000020"));
  Damage(Data("step-00000020"), [](std::string& bytes) { bytes.pop_back(); });
  Retention retention(storage_, {.newest = 4});
  ASSERT_OK(retention.Apply(absl::Now()));
  Damage(Data("step-00000020"), [&](std::string& bytes) { bytes = whole; });
  const uint64_t bytes =
      Contents(Data("step-00000030")).size() + Contents(Data("step-00000040")).size();
  ASSERT_OK_AND_ASSIGN(const auto deleted,
                       retention.MakeRoom({60, false, *storage_.FreeBytes() + bytes}, absl::Now()));
  EXPECT_THAT(deleted, ElementsAre("step-00000030", "step-00000040"));
  EXPECT_THAT(Steps(), ElementsAre(20, 50));
}

// A checkpoint that was copied from an object store, with what was set aside there in its folder.
TEST_F(SavedCheckpointsTest, WhatWasSetAsideInItsFolderStaysInACopyOnADisk) {
  Save(10);
  ASSERT_OK(memory_.Rename("step-00000010/manifest.pb", "step-00000010/manifest.pb.damaged"));
  const std::string data = Data("step-00000010");
  const std::string contents = Contents(data);
  Save(10);
  EXPECT_EQ(Names("step-00000010").size(), 4u);
  Save(20);
  Retention retention(storage_, {.newest = 1});
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(20));
  EXPECT_EQ(Contents(data), contents);
  EXPECT_EQ(Names("step-00000010").size(), 2u);
  ASSERT_OK(CheckpointFolder(storage_).Prune(1));
  ASSERT_OK(memory_.Rename("step-00000010", "step-00000010.discarded-00000001"));
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_EQ(Contents(data), contents);
}

// Committed just before its directory was renamed to be deleted, by a run that then died.
TEST_F(SavedCheckpointsTest, ACheckpointThatWasBeingDiscardedIsFoundAgain) {
  Save(10);
  Save(20);
  SaveRolling(30);
  ASSERT_OK(memory_.Rename("step-00000020", "step-00000020.discarded-00000001"));
  ASSERT_OK(
      memory_.Rename("rolling-0/step-00000030", "rolling-0/step-00000030.discarded-00000001"));
  EXPECT_EQ(Take(), 30);
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
}

TEST_F(SavedCheckpointsTest, RetentionKeepsTheBestAndLeavesRollingOnesAlone) {
  SaveWithHealth(10, true, true, 3.0);
  SaveWithHealth(20, true, true, 1.0);
  SaveWithHealth(30, true, true, 2.0);
  SaveWithHealth(40, true, true);
  SaveRolling(15);
  SaveRolling(25);
  Retention retention(storage_, {.newest = 1, .best = 2});
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(20, 30, 40));
  EXPECT_EQ(ListForResume(storage_)->size(), 5u);
}

TEST_F(SavedCheckpointsTest, WhatWasJustSavedStaysWhateverItsStep) {
  for (const int64_t step : {900, 1000, 100, 200}) Save(step);
  Retention retention(storage_, {.newest = 2});
  ASSERT_OK(retention.Apply(absl::Now(), /*saved_step=*/200));
  EXPECT_THAT(Steps(), ElementsAre(200, 900, 1000));
  Save(300);
  ASSERT_OK(CheckpointFolder(storage_).Prune(1, /*saved_step=*/300));
  EXPECT_THAT(Steps(), ElementsAre(300, 1000));
}

TEST_F(SavedCheckpointsTest, RetentionRemovesOlderIncompleteSavesOnly) {
  Save(10);
  Save(20);
  ASSERT_OK(memory_.Delete("step-00000010/manifest.pb"));
  ASSERT_OK(memory_.MakeDirectory("step-00000030"));
  ASSERT_OK(memory_.MakeDirectory("step-00000005.damaged"));
  Retention retention(storage_, {.newest = 5});
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(Names(""), ElementsAre("step-00000005.damaged/", "step-00000020/", "step-00000030/"));
  Retention everything(storage_, {});
  ASSERT_OK(everything.Apply(absl::Now()));
  EXPECT_THAT(Steps(), ElementsAre(20));
}

TEST_F(SavedCheckpointsTest, RoomIsMadeWithoutTheNewestGoodOne) {
  storage_.SetDiskBytes(1 << 20);
  SaveRolling(15);
  SaveRolling(25);
  const uint64_t bytes = Contents(Data("rolling-0/step-00000015")).size();
  // For a save that needs so many bytes more than there are.
  const auto make_room = [&](const RetentionOptions& options, uint64_t lacking_bytes) {
    Retention retention(storage_, options);
    return OrFail(
        retention.MakeRoom({30, false, *storage_.FreeBytes() + lacking_bytes}, absl::Now()));
  };
  EXPECT_THAT(make_room({}, 0), ElementsAre());
  EXPECT_THAT(make_room({}, bytes + 1), ElementsAre()) << "the older one is too small";
  EXPECT_THAT(make_room({}, bytes), ElementsAre("rolling-0/step-00000015"));
  EXPECT_THAT(make_room({}, 1), ElementsAre()) << "the newest stays";
  SaveWithHealth(10, true, true);
  SaveWithHealth(20, true, true);
  EXPECT_THAT(make_room({}, 1), ElementsAre()) << "without a policy, permanent ones do, too";
  SaveWithHealth(27, false, true);
  EXPECT_THAT(make_room({.newest = 3}, 1), ElementsAre("step-00000010"));
  EXPECT_THAT(Steps(), ElementsAre(20, 27));
  // The newest one whose state is finite lies in a rolling slot.
  EXPECT_THAT(make_room({.newest = 1}, 2 * bytes), ElementsAre("step-00000027", "step-00000020"));
  EXPECT_EQ(Take(), 25);
}

// Readers in other processes hold the same lock.
TEST(ReadCheckpointsTest, WhatIsBeingReadStaysUntilTheNextTime) {
  const TestFolder folder;
  const auto storage = *OpenPosixStorage(folder.path());
  const auto save = [&](int64_t step, const std::string& root) {
    std::vector<float> elements(64, static_cast<float>(step));
    ASSERT_OK(
        SaveNow(*storage, {.step = step}, OneTensor(elements), {}, {.choose_root = In(root)}));
  };
  const auto steps = [&] {
    std::vector<int64_t> found;
    const std::vector<CheckpointInfo> all = *ListForResume(*storage);
    for (const CheckpointInfo& saved : all) found.push_back(saved.step);
    return found;
  };
  for (const int64_t step : {1, 2, 3}) save(step, "");
  Retention retention(*storage, {.newest = 1});
  {
    const ReadLock reader(*storage, "step-00000001");
    EXPECT_TRUE(reader.holds());
    const pid_t child = fork();
    if (child == 0) _exit(reader.holds() ? 1 : 0);
    int exit_status = -1;
    waitpid(child, &exit_status, 0);
    EXPECT_EQ(exit_status, 0);
    EXPECT_FALSE(ReadLock().holds());
    EXPECT_FALSE(ReadLock(*storage, "step-00000009").holds());
    ASSERT_OK(retention.Apply(absl::Now()));
    EXPECT_THAT(steps(), ElementsAre(3, 1));
    ASSERT_OK(CheckpointFolder(*storage).Prune(1));
    EXPECT_THAT(steps(), ElementsAre(3, 1));
  }
  {
    ASSERT_OK_AND_ASSIGN(const Checkpoint open, Checkpoint::Open(*storage, "step-00000001"));
    EXPECT_TRUE(open.is_kept());
    ASSERT_OK(retention.Apply(absl::Now()));
    EXPECT_THAT(steps(), ElementsAre(3, 1));
  }
  ASSERT_OK(retention.Apply(absl::Now()));
  EXPECT_THAT(steps(), ElementsAre(3));

  // The next rolling checkpoint stands beside the one that is being read.
  save(4, *EmptyRollingSlot(*storage));
  save(5, *EmptyRollingSlot(*storage));
  {
    const ReadLock reader(*storage, "rolling-0/step-00000004");
    save(6, *EmptyRollingSlot(*storage));
    EXPECT_THAT(steps(), ElementsAre(6, 5, 4, 3));
  }
  save(7, *EmptyRollingSlot(*storage));
  save(8, *EmptyRollingSlot(*storage));
  EXPECT_THAT(steps(), ElementsAre(8, 7, 3));
}

}  // namespace
}  // namespace tessera::ckpt
