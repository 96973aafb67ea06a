// Two runs on a disk: one stands still at one of its operations, as a process does that is stopped,
// swapped out or cut off from its file system, while the other one works. In tests/worlds/jobs
// whole jobs never meet on a disk, because they lock their folder.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kElements = 1024;
constexpr int64_t kStep = 7;

// Saves `value` in every element.
absl::Status SaveValue(Storage& storage, float value, int64_t step = kStep,
                       bool overwrite = false) {
  std::vector<float> elements(kElements, value);
  return CheckpointFolder(storage)
      .Save(step, OneTensor(elements), {.overwrite = overwrite, .checksum_chunk_bytes = 1024})
      .status();
}
absl::Status Overwrite(Storage& storage, float value) {
  return SaveValue(storage, value, kStep, /*overwrite=*/true);
}

// The value of the step's checkpoint, whose every byte and element is checked; -1 if nothing is
// committed.
float SavedValue(Storage& storage, int64_t step = kStep) {
  const std::string directory = StepDirectoryName(step);
  const auto checkpoint = Checkpoint::Open(storage, directory);
  if (absl::IsNotFound(checkpoint.status())) return -1;
  const auto verified = VerifyCheckpoint(storage, directory, {.digests = true});
  EXPECT_OK(verified);
  if (verified.ok()) EXPECT_TRUE(verified->damage.empty()) << verified->damage[0].message;
  const auto elements = checkpoint->LoadTensor<float>("weight");
  EXPECT_OK(elements);
  if (!elements.ok()) return -2;
  for (const float element : *elements) EXPECT_EQ(element, elements->front());
  return elements->front();
}

// Whether nothing is left of other attempts than the one that has committed.
testing::AssertionResult HasOneAttempt(Storage& storage) {
  std::vector<std::string> names = *storage.List(StepDirectoryName(kStep));
  std::erase(names, kFencedFileName);
  if (names.size() == 2) return testing::AssertionSuccess();
  return testing::AssertionFailure() << absl::StrJoin(names, " ");
}

// The storages that differ in how a manifest is replaced, each new and empty.
struct Place {
  std::string name;
  std::function<std::shared_ptr<Storage>(const std::string& folder)> open;
};
const Place kPlaces[] = {{"a disk",
                          [](const std::string& folder) -> std::shared_ptr<Storage> {
                            return *OpenPosixStorage(folder);
                          }},
                         {"an object store", [](const std::string&) -> std::shared_ptr<Storage> {
                            return std::make_shared<MemoryStorage>(/*renames_directories=*/false);
                          }}};

// A storage of which one operation, in the order of their arrival, is preceded by a call.
class Interrupted {
 public:
  Interrupted(Storage& base, int64_t operation, std::function<void()> call) : storage_(base) {
    storage_.BeforeEach([this, operation, call = std::move(call)](const Operation&) {
      if (arrived_++ == operation) {
        happened_ = true;
        call();
      }
    });
  }
  Storage& storage() { return storage_; }
  bool happened() const { return happened_; }

 private:
  FaultInjectingStorage storage_;
  std::atomic<int64_t> arrived_ = 0;
  std::atomic<bool> happened_ = false;
};

TEST(FencingTest, ARunThatStoodStillChangesNothingThatIsCommitted) {
  bool happened = true;
  int second_won = 0;
  for (int64_t operation = 0; happened; ++operation) {
    SCOPED_TRACE(absl::StrCat("before operation ", operation));
    const TestFolder folder;
    const auto posix = *OpenPosixStorage(folder.path());
    absl::Status second;
    float saved_by_second = -1;
    Interrupted interrupted(*posix, operation, [&] {
      second = SaveValue(*posix, 2);
      saved_by_second = SavedValue(*posix);
    });
    const absl::Status first = SaveValue(interrupted.storage(), 1);
    happened = interrupted.happened();
    if (!happened) {
      EXPECT_OK(first);
      break;
    }
    EXPECT_TRUE(second.ok() || absl::IsAlreadyExists(second)) << second;
    EXPECT_NE(first.ok(), second.ok()) << first << "; " << second;
    EXPECT_EQ(saved_by_second, second.ok() ? 2 : 1);
    EXPECT_EQ(SavedValue(*posix), saved_by_second) << first << "; " << second;
    second_won += second.ok() ? 1 : 0;
    // Nothing is left of what was set aside.
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
      EXPECT_EQ(entry.path().filename(), StepDirectoryName(kStep));
    }
  }
  EXPECT_GT(second_won, 5);
}

// A run that stands before its commit continues while another one deletes what is incomplete, at
// each operation of that one in turn. What it then commits is whole, and stays.
TEST(FencingTest, ALateCommitIsNeverDeletedAsIncomplete) {
  const std::vector<std::function<absl::Status(Storage&)>> ways = {
      [](Storage& storage) { return CheckpointFolder(storage).Prune(5); },
      [](Storage& storage) { return Retention(storage, {.newest = 5}).Apply(absl::Now()); },
      [](Storage& storage) { return EmptyRollingSlot(storage).status(); }};
  for (size_t way = 0; way < ways.size(); ++way) {
    const bool rolling = way == 2;
    int committed = 0;
    bool happened = true;
    for (int64_t operation = 0; happened; ++operation) {
      SCOPED_TRACE(absl::StrCat("way ", way, ", before operation ", operation));
      const TestFolder folder;
      const std::string root = rolling ? absl::StrCat(folder.path(), "/rolling-0") : folder.path();
      const auto place = *OpenPosixStorage(root, {.create_root = true});
      if (!rolling) ASSERT_OK(SaveValue(*place, 3, kStep + 1));
      std::promise<void> stands, continues;
      absl::Status late;
      std::thread run([&] {
        FaultInjectingStorage storage(*place);
        storage.BeforeEach([&](const Operation& operation) {
          if (operation.kind == OperationKind::kRename &&
              operation.to_path.ends_with("/manifest.pb")) {
            stands.set_value();
            continues.get_future().wait();
          }
        });
        late = SaveValue(storage, 1);
      });
      stands.get_future().wait();
      const auto go_on = [&] {
        continues.set_value();
        run.join();
      };
      const auto posix = *OpenPosixStorage(folder.path());
      Interrupted interrupted(*posix, operation, go_on);
      EXPECT_EQ(ways[way](interrupted.storage()), absl::OkStatus());
      happened = interrupted.happened();
      if (!happened) {
        go_on();
        EXPECT_FALSE(late.ok());
      }
      EXPECT_EQ(SavedValue(*place), late.ok() ? 1 : -1) << late;
      committed += late.ok() ? 1 : 0;
    }
    EXPECT_GT(committed, 1);
  }
}

// Saves a step for the first time, beside one that is committed.
TEST(FirstSaveTest, AnyOperationMayFailOrBeTheLast) {
  for (const Place& place : kPlaces) {
    for (const bool dies : {false, true}) {
      int absent = 0;
      bool happened = true;
      for (int64_t operation = 0; happened; ++operation) {
        SCOPED_TRACE(absl::StrCat(place.name, dies ? ", dies" : ", fails", " at ", operation));
        const TestFolder folder;
        const std::shared_ptr<Storage> storage = place.open(folder.path());
        ASSERT_OK(SaveValue(*storage, 3, kStep - 1));
        FaultInjectingStorage faulty(*storage);
        if (dies) faulty.DieAt(operation, /*torn_bytes=*/3);
        if (!dies) faulty.FailAt(operation, absl::PermissionDeniedError("no"), /*torn_bytes=*/3);
        const absl::Status status = SaveValue(faulty, 1);
        happened = faulty.operation_count() > operation;
        const float value = SavedValue(*storage);
        EXPECT_TRUE(value == 1 || (value == -1 && !status.ok())) << value << ", " << status;
        absent += value == -1;
        ASSERT_OK_AND_ASSIGN(const auto list, CheckpointFolder(*storage).List());
        ASSERT_EQ(list.size(), value == 1 ? 2 : 1);
        EXPECT_EQ(SavedValue(*storage, kStep - 1), 3);
        ASSERT_OK(SaveValue(*storage, 2, kStep, /*overwrite=*/value == 1));
        EXPECT_EQ(SavedValue(*storage), 2);
        EXPECT_TRUE(HasOneAttempt(*storage));
      }
      EXPECT_GT(absent, 5);
    }
  }
}

// Readers at each moment of the save find the old checkpoint, and then the new one.
TEST(OverwriteTest, ThereIsAWholeCheckpointAtEveryMoment) {
  for (const Place& place : kPlaces) {
    bool happened = true;
    float last = 3;
    for (int64_t operation = 0; happened; ++operation) {
      SCOPED_TRACE(absl::StrCat(place.name, ", before operation ", operation));
      const TestFolder folder;
      const std::shared_ptr<Storage> storage = place.open(folder.path());
      ASSERT_OK(SaveValue(*storage, 3));
      Interrupted interrupted(*storage, operation, [&] {
        const float value = SavedValue(*storage);
        EXPECT_TRUE(value == last || value == 1) << value;
        last = value;
        EXPECT_EQ(CheckpointFolder(*storage).FindLatest()->checkpoint.step, kStep);
      });
      EXPECT_OK(Overwrite(interrupted.storage(), 1));
      happened = interrupted.happened();
      EXPECT_EQ(SavedValue(*storage), 1);
      EXPECT_TRUE(HasOneAttempt(*storage));
    }
    EXPECT_EQ(last, 1);
  }
}

// A reader stands at each of its operations while a run overwrites what it reads.
TEST(OverwriteTest, AReaderGetsOneCheckpointOrAnError) {
  for (const Place& place : kPlaces) {
    const bool has_locks = &place == kPlaces;
    bool happened = true;
    int old = 0, failed = 0;
    for (int64_t operation = 0; happened; ++operation) {
      SCOPED_TRACE(absl::StrCat(place.name, ", before operation ", operation));
      const TestFolder folder;
      const std::shared_ptr<Storage> storage = place.open(folder.path());
      ASSERT_OK(SaveValue(*storage, 3));
      Interrupted interrupted(*storage, operation, [&] { EXPECT_OK(Overwrite(*storage, 1)); });
      const auto opened = Checkpoint::Open(interrupted.storage(), StepDirectoryName(kStep));
      const auto read = opened.ok() ? opened->LoadTensor<float>("weight")
                                    : absl::StatusOr<std::vector<float>>(opened.status());
      happened = interrupted.happened();
      if (!read.ok()) {
        EXPECT_FALSE(has_locks) << read.status();
        EXPECT_TRUE(absl::IsNotFound(read.status())) << read.status();
        ++failed;
        continue;
      }
      EXPECT_TRUE(*read == std::vector<float>(kElements, 3) ||
                  *read == std::vector<float>(kElements, 1));
      old += read->front() == 3;
    }
    EXPECT_GT(old, 1);
    EXPECT_EQ(failed > 0, !has_locks);
  }
}

TEST(OverwriteTest, FilesThatAReaderKeepsGoWithTheNextSave) {
  const TestFolder folder;
  const auto posix = *OpenPosixStorage(folder.path());
  ASSERT_OK(SaveValue(*posix, 3));
  const std::string signature = StepDirectoryName(kStep) + "/manifest.sig";
  ASSERT_OK(WriteAll(*posix, signature, "of the old manifest"));
  {
    const auto reader = Checkpoint::Open(*posix, StepDirectoryName(kStep));
    ASSERT_OK(Overwrite(*posix, 1));
    EXPECT_FALSE(HasOneAttempt(*posix));
    EXPECT_TRUE(absl::IsNotFound(posix->Open(signature).status()));
    EXPECT_EQ(reader->LoadTensor<float>("weight")->front(), 3);
  }
  EXPECT_EQ(SavedValue(*posix), 1);
  ASSERT_OK(Overwrite(*posix, 2));
  EXPECT_TRUE(HasOneAttempt(*posix));
}

// A run stands still at each of its operations while another one overwrites the same checkpoint.
TEST(OverwriteTest, OfTwoRunsTheLastOneThatSucceedsIsThere) {
  for (const Place& place : kPlaces) {
    bool happened = true;
    int refused = 0;
    for (int64_t operation = 0; happened; ++operation) {
      SCOPED_TRACE(absl::StrCat(place.name, ", before operation ", operation));
      const TestFolder folder;
      const std::shared_ptr<Storage> storage = place.open(folder.path());
      ASSERT_OK(SaveValue(*storage, 3));
      Interrupted interrupted(*storage, operation, [&] {
        EXPECT_OK(Overwrite(*storage, 2));
        EXPECT_EQ(SavedValue(*storage), 2);
      });
      const absl::Status first = Overwrite(interrupted.storage(), 1);
      happened = interrupted.happened();
      EXPECT_TRUE(first.ok() || absl::IsAlreadyExists(first) || absl::IsAborted(first)) << first;
      refused += !first.ok();
      // The first one begins to overwrite the second one's checkpoint, or is overwritten by it.
      const float value = SavedValue(*storage);
      EXPECT_TRUE(value == (happened ? 2 : 1) || (value == 1 && refused == 0)) << value;
      // Files stay where both have just deleted some.
      if (first.ok()) ASSERT_OK(Overwrite(*storage, 4));
      EXPECT_TRUE(HasOneAttempt(*storage)) << first;
    }
    EXPECT_GT(refused, 5);
  }
}

// Both have made their manifests, and have looked whether the old one is there.
TEST(OverwriteTest, OneOfTwoCommitsAtTheSameMomentSucceeds) {
  const TestFolder folder;
  const auto posix = *OpenPosixStorage(folder.path());
  ASSERT_OK(SaveValue(*posix, 3));
  std::promise<void> stands, continues;
  absl::Status late;
  std::thread run([&] {
    FaultInjectingStorage storage(*posix);
    storage.BeforeEach([&](const Operation& operation) {
      if (operation.kind == OperationKind::kReplace) {
        stands.set_value();
        continues.get_future().wait();
      }
    });
    late = Overwrite(storage, 1);
  });
  stands.get_future().wait();
  // Because of the reader, no data is deleted.
  const auto reader = Checkpoint::Open(*posix, StepDirectoryName(kStep));
  EXPECT_OK(Overwrite(*posix, 2));
  continues.set_value();
  run.join();
  EXPECT_TRUE(absl::IsAlreadyExists(late)) << late;
  EXPECT_EQ(SavedValue(*posix), 2);
}

// Another program deletes the new files while they are committed: the old checkpoint returns.
TEST(OverwriteTest, ACommitWithoutItsFilesIsTakenBack) {
  for (const Place& place : kPlaces) {
    SCOPED_TRACE(place.name);
    const TestFolder folder;
    const std::shared_ptr<Storage> storage = place.open(folder.path());
    ASSERT_OK(SaveValue(*storage, 3));
    const std::string directory = StepDirectoryName(kStep);
    const std::vector<std::string> old = *storage->List(directory);
    FaultInjectingStorage committing(*storage);
    committing.BeforeEach([&](const Operation& operation) {
      if (operation.kind != OperationKind::kReplace) return;
      const std::vector<std::string> names = *storage->List(directory);
      for (const std::string& name : names) {
        const bool is_new = name.ends_with(".safetensors") && !std::ranges::count(old, name);
        if (is_new) EXPECT_OK(storage->Delete(JoinPath(directory, name)));
      }
    });
    const absl::Status saved = Overwrite(committing, 1);
    EXPECT_TRUE(absl::IsAborted(saved)) << saved;
    EXPECT_EQ(SavedValue(*storage), 3);
  }
}

// A run that found a damaged checkpoint stands still while another one replaces it by a good one.
TEST(FencingTest, AQuarantineLeavesACheckpointThatHasReplacedTheDamagedOne) {
  for (const Place& place : kPlaces) {
    bool happened = true;
    int left_alone = 0;
    for (int64_t operation = 0; happened; ++operation) {
      SCOPED_TRACE(absl::StrCat(place.name, ", before operation ", operation));
      const TestFolder folder;
      const std::shared_ptr<Storage> storage = place.open(folder.path());
      ASSERT_OK(SaveValue(*storage, 1));
      const std::string directory = StepDirectoryName(kStep);
      ASSERT_OK_AND_ASSIGN(
          const std::string damaged,
          ReadAll(*storage, JoinPath(directory, kManifestFileName), uint64_t{1} << 20));
      absl::Status replaced;
      Interrupted interrupted(*storage, operation, [&] { replaced = Overwrite(*storage, 2); });
      const absl::StatusOr<std::string> moved_to =
          Removal::In(interrupted.storage())->Quarantine(directory, "damaged", &damaged);
      happened = interrupted.happened();
      if (!happened) {
        EXPECT_OK(moved_to);
        break;
      }
      EXPECT_TRUE(moved_to.ok() || absl::IsAborted(moved_to.status()) ||
                  absl::IsUnavailable(moved_to.status()))
          << moved_to.status();
      EXPECT_EQ(SavedValue(*storage), replaced.ok() ? 2 : -1) << replaced;
      left_alone += moved_to.ok() ? 0 : 1;
    }
    EXPECT_GE(left_alone, 2);
  }
}

// An object store's manifest arrives with a flipped bit, once.
TEST(FencingTest, AManifestThatWasDamagedOnItsWayIsNotQuarantined) {
  MemoryStorage store(/*renames_directories=*/false);
  ASSERT_OK(SaveValue(store, 1));
  const std::string directory = StepDirectoryName(kStep);
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> before, store.List(directory));
  FaultInjectingStorage storage(store);
  storage.CorruptReads(JoinPath(directory, kManifestFileName), 9, std::byte{1}, 1);
  const auto moved = Removal::In(storage)->Quarantine(directory, "abandoned", nullptr);
  EXPECT_TRUE(absl::IsUnavailable(moved.status())) << moved.status();
  EXPECT_EQ(*store.List(directory), before);
  EXPECT_EQ(SavedValue(store), 1);
}

// Another process writes under the names of the data files before they are committed.
TEST(FencingTest, FilesOfAnotherSizeThanWasWrittenAreNotCommitted) {
  MemoryStorage files;
  FaultInjectingStorage storage(files);
  storage.BeforeEach([&](const Operation& operation) {
    if (operation.kind != OperationKind::kSyncDirectory) return;
    const std::vector<std::string> names = *files.List(operation.path);
    for (const std::string& name : names) {
      EXPECT_OK(WriteAll(files, JoinPath(operation.path, name), "short"));
    }
  });
  const absl::Status saved = SaveValue(storage, 1);
  EXPECT_TRUE(absl::IsAborted(saved)) << saved;
  EXPECT_EQ(SavedValue(files), -1);
}

// The reply to the request that commits is lost, and its repetition finds the name taken.
TEST(FencingTest, ACommitWhoseReplyIsLostKeepsItsData) {
  const auto commits = [](const Operation& operation) {
    return operation.to_path.ends_with("/manifest.pb");
  };
  for (const absl::Status& reply : {absl::AlreadyExistsError("the name is taken"),
                                    absl::UnavailableError("Input/output error")}) {
    const TestFolder folder;
    const auto posix = *OpenPosixStorage(folder.path());
    FaultInjectingStorage storage(*posix);
    storage.MisreportRenames(commits, reply);
    const absl::Status saved = SaveValue(storage, 1);
    EXPECT_EQ(saved.ok(), absl::IsAlreadyExists(reply)) << saved;
    const std::vector<Operation> done = storage.operations();
    const auto commit = std::ranges::find_if(done, commits);
    EXPECT_EQ(saved.ok(), std::find_if(commit, done.end(), [](const Operation& operation) {
                            return operation.kind == OperationKind::kSyncDirectory;
                          }) != done.end());
    EXPECT_TRUE(absl::IsAlreadyExists(SaveValue(*posix, 2)));
    EXPECT_EQ(SavedValue(*posix), 1);
  }
}

}  // namespace
}  // namespace tessera::ckpt
