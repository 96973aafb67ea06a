// Deletions while another process deletes, or commits, in the same folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/testing/test_state.h"
#include "storage/forwarding_storage.h"
#include "storage/posix_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Calls a function before each operation on a name.
class WatchedStorage final : public ForwardingStorage {
 public:
  WatchedStorage(Storage& base, std::function<void(const std::string&)> before)
      : ForwardingStorage(base), before_(std::move(before)) {}
  absl::Status Rename(std::string_view from, std::string_view to) override {
    before_("rename " + std::string(from));
    return ForwardingStorage::Rename(from, to);
  }
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    before_("list " + std::string(path));
    return ForwardingStorage::List(path);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    before_("open " + std::string(path));
    return ForwardingStorage::Open(path);
  }
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    before_("write " + std::string(path));
    return ForwardingStorage::Write(path, contents, condition);
  }
  absl::Status Delete(std::string_view path) override {
    before_("delete " + std::string(path));
    return ForwardingStorage::Delete(path);
  }
  absl::Status DeleteVersion(std::string_view path, std::string_view version) override {
    before_("delete " + std::string(path));
    return ForwardingStorage::DeleteVersion(path, version);
  }
  absl::Status DeleteFiles(std::string_view directory,
                           const std::vector<std::string>& names) override {
    before_("delete files of " + std::string(directory));
    return ForwardingStorage::DeleteFiles(directory, names);
  }
  absl::Status DeleteTree(std::string_view path) override {
    before_("delete " + std::string(path));
    return ForwardingStorage::DeleteTree(path);
  }

 private:
  const std::function<void(const std::string&)> before_;
};

void Save(Storage& storage, int64_t step) {
  std::vector<float> elements(64, static_cast<float>(step));
  ASSERT_OK(CheckpointFolder(storage).Save(step, OneTensor(elements)));
}

// Returns the value in a checkpoint; -1 without a checkpoint.
float Value(Storage& storage, int64_t step) {
  const absl::StatusOr<Checkpoint> saved = CheckpointFolder(storage).At(step);
  if (!saved.ok()) return -1;
  const auto elements = saved->LoadTensor<float>("weight");
  EXPECT_OK(elements);
  return elements.ok() ? elements->front() : -2;
}

// Another process overwrites the checkpoint at any moment after it was judged.
TEST(ConcurrentRemovalTest, WhatReplacesACheckpointThatIsBeingPrunedStays) {
  for (const bool renames : {true, false}) {
    int stayed = 0;
    bool happened = true;
    for (int moment = 1; happened; ++moment) {
      SCOPED_TRACE(absl::StrCat("operation ", moment, renames ? ", by renaming" : ""));
      MemoryStorage memory(renames);
      Save(memory, 10);
      Save(memory, 20);
      happened = false;
      absl::Status overwritten;
      int operations = 0;
      WatchedStorage watched(memory, [&](const std::string& operation) {
        const bool judges = operation == "open step-00000010/manifest.pb";
        if ((operations == 0 && !judges) || operations++ != moment) return;
        happened = true;
        std::vector<float> elements(64, 11);
        overwritten =
            CheckpointFolder(memory).Save(10, OneTensor(elements), {.overwrite = true}).status();
      });
      EXPECT_OK(CheckpointFolder(watched).Prune(1));
      ASSERT_OK(SettleDiscarded(memory, ""));
      EXPECT_EQ(Value(memory, 20), 20);
      EXPECT_EQ(Value(memory, 10), happened && overwritten.ok() ? 11 : -1) << overwritten;
      stayed += happened && overwritten.ok() ? 1 : 0;
    }
    EXPECT_GT(stayed, 3);
  }
}

TEST(ConcurrentRemovalTest, WhatAnotherProcessHasDeletedMeanwhileIsDeleted) {
  for (const char* moment :
       {"open step-00000010/manifest.pb", "rename step-00000010", "delete step-00000010.disc"}) {
    SCOPED_TRACE(moment);
    MemoryStorage memory;
    Save(memory, 10);
    Save(memory, 20);
    WatchedStorage watched(memory, [&](const std::string& operation) {
      if (operation.starts_with(moment)) ASSERT_OK(CheckpointFolder(memory).Prune(1));
    });
    EXPECT_OK(CheckpointFolder(watched).Prune(1));
    EXPECT_THAT(*memory.List(""), ElementsAre("step-00000020/"));
  }
}

// An attempt commits just before its directory is renamed to be deleted.
TEST(ConcurrentRemovalTest, ACheckpointThatIsCommittedWhileItIsDiscardedDoesNotStayHidden) {
  for (const bool saved_again : {false, true}) {
    SCOPED_TRACE(saved_again);
    MemoryStorage memory;
    Save(memory, 10);
    Save(memory, 20);
    const std::string path = "step-00000010/manifest.pb";
    ASSERT_OK_AND_ASSIGN(const std::string manifest, ReadAll(memory, path, 1 << 20));
    ASSERT_OK(memory.Delete(path));
    WatchedStorage watched(memory, [&](const std::string& operation) {
      if (operation == "rename step-00000010") {
        ASSERT_OK(WriteAll(memory, path, manifest));
      } else if (operation.starts_with("rename step-00000010.disc") && saved_again) {
        ASSERT_OK(memory.MakeDirectory("step-00000010"));
        // Another save is on its way there, and may still fail.
        ASSERT_OK(SettleDiscarded(memory, ""));
        ASSERT_OK(WriteAll(memory, path, "another"));
      } else if (operation.starts_with("rename step-00000010.disc")) {
        ASSERT_OK(SettleDiscarded(memory, ""));
      }
    });
    EXPECT_OK(CheckpointFolder(watched).Prune(1));
    ASSERT_OK(SettleDiscarded(memory, ""));
    if (!saved_again) {
      EXPECT_THAT(*memory.List(""), ElementsAre("step-00000010/", "step-00000020/"));
      continue;
    }
    EXPECT_THAT(*memory.List(""),
                ElementsAre("step-00000010.abandoned/", "step-00000010/", "step-00000020/"));
    EXPECT_EQ(ReadAll(memory, "step-00000010.abandoned/manifest.pb", 1 << 20).value_or(""),
              manifest);
    EXPECT_EQ(ReadAll(memory, path, 1 << 20).value_or(""), "another");
  }
}

// Another process takes the renamed directory for one that a crash has left.
TEST(ConcurrentRemovalTest, ACheckpointThatGetsItsNameBackWhileItIsDeletedStaysWhole) {
  MemoryStorage memory;
  Save(memory, 10);
  ASSERT_OK_AND_ASSIGN(const std::string manifest,
                       ReadAll(memory, "step-00000010/manifest.pb", 1 << 20));
  WatchedStorage watched(memory, [&](const std::string& operation) {
    if (operation.starts_with("delete step-00000010.disc")) ASSERT_OK(SettleDiscarded(memory, ""));
  });
  const std::unique_ptr<Removal> removal = Removal::In(watched);
  const CheckpointInfo info = {.step = 10, .directory = "step-00000010", .committed = true};
  EXPECT_FALSE(*removal->Delete(info, ManifestIdentity(manifest)));
  EXPECT_EQ(Value(memory, 10), 10);
  EXPECT_FALSE(*removal->TakeBack(info.directory, manifest)) << "its files must stay";
  EXPECT_EQ(Value(memory, 10), 10);
}

// Another process finds the renamed directory with its manifest, and renames it when that is gone.
TEST(ConcurrentRemovalTest, WhatIsBeingDeletedIsNotTakenForARemainder) {
  for (const bool saved_again : {false, true}) {
    SCOPED_TRACE(saved_again);
    const TestFolder folder;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Storage> storage, OpenPosixStorage(folder.path()));
    Save(*storage, 10);
    Save(*storage, 20);
    absl::Notification has_looked, deleted;
    std::thread other;
    WatchedStorage of_other(*storage, [&](const std::string& operation) {
      if (!operation.starts_with("rename step-00000010.disc")) return;
      has_looked.Notify();
      deleted.WaitForNotification();
    });
    WatchedStorage watched(*storage, [&](const std::string& operation) {
      if (operation.starts_with("delete step-00000010.disc") && !has_looked.HasBeenNotified()) {
        if (saved_again) Save(*storage, 10);
        other = std::thread([&] {
          EXPECT_OK(SettleDiscarded(of_other, ""));
          if (!has_looked.HasBeenNotified()) has_looked.Notify();
        });
        has_looked.WaitForNotification();
      } else if (other.joinable()) {
        deleted.Notify();
        other.join();
      }
    });
    EXPECT_OK(CheckpointFolder(watched).Prune(1));
    std::vector<std::string> expected = {"step-00000020/"};
    if (saved_again) expected.insert(expected.begin(), "step-00000010/");
    EXPECT_EQ(*storage->List(""), expected);
  }
}

// The signature of what replaces a checkpoint has the name of the old one.
TEST(ConcurrentRemovalTest, ALateDeletionInAnObjectStoreSparesANewSignature) {
  const std::string signature = "step-00000010/manifest.sig";
  MemoryStorage memory(/*renames_directories=*/false);
  Save(memory, 10);
  Save(memory, 20);
  ASSERT_OK(WriteAll(memory, signature, "old"));
  WatchedStorage watched(memory, [&](const std::string& operation) {
    if (operation != "delete step-00000010/manifest.pb") return;
    std::vector<float> elements(64, 11);
    ASSERT_OK(CheckpointFolder(memory).Save(10, OneTensor(elements), {.overwrite = true}));
    ASSERT_OK(WriteAll(memory, signature, "new"));
  });
  EXPECT_OK(CheckpointFolder(watched).Prune(1));
  EXPECT_EQ(Value(memory, 10), 11);
  EXPECT_EQ(ReadAll(memory, signature, 1 << 20).value_or("gone"), "new");
}

// A save commits in a directory that another process is about to discard. The directory gets its
// name back while the save fails.
TEST(ConcurrentRemovalTest, ASaveThatMayBeCommittedKeepsItsFiles) {
  MemoryStorage memory;
  const std::string directory = "step-00000010", discarded = "step-00000010.discarded-00000001";
  bool gone = false;
  WatchedStorage watched(memory, [&](const std::string& operation) {
    const bool committed = memory.Open("step-00000010/manifest.pb").ok();
    if (operation == "list " + directory && committed && !gone) {
      gone = true;
      ASSERT_OK(memory.Rename(directory, discarded));
    } else if (gone && operation.starts_with("delete step-00000010")) {
      ASSERT_OK(SettleDiscarded(memory, ""));
    }
  });
  std::vector<float> elements(64, 10);
  const absl::Status saved = CheckpointFolder(watched).Save(10, OneTensor(elements)).status();
  EXPECT_TRUE(gone);
  EXPECT_TRUE(absl::IsUnavailable(saved)) << saved;
  EXPECT_THAT(std::string(saved.message()), HasSubstr("not known whether it is committed"));
  ASSERT_OK(SettleDiscarded(memory, ""));
  EXPECT_OK(LoadCheckpoint(memory, directory, OneTensor(elements)));
}

// Commits manifests and reports that others were there before, as to a repeated request whose first
// answer was lost; another process quarantines the checkpoint meanwhile.
class QuarantiningStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override {
    auto written = ForwardingStorage::Write(path, contents, condition);
    if (!written.ok() || !path.ends_with("/manifest.pb")) return written;
    EXPECT_OK(Removal::In(base())->Quarantine(FolderOf(path), "abandoned", nullptr));
    return absl::AlreadyExistsError("412");
  }
};

TEST(ConcurrentRemovalTest, ASaveThatIsQuarantinedAsItCommitsKeepsItsFiles) {
  MemoryStorage memory(/*renames_directories=*/false);
  QuarantiningStorage storage(static_cast<Storage&>(memory));
  std::vector<float> elements(64, 10);
  const absl::Status saved = CheckpointFolder(storage).Save(10, OneTensor(elements)).status();
  EXPECT_TRUE(absl::IsAborted(saved)) << saved;
  ASSERT_OK_AND_ASSIGN(const std::string manifest,
                       ReadAll(memory, "step-00000010/manifest.pb.abandoned", 1 << 20));
  ASSERT_OK(memory.Delete("step-00000010/manifest.pb"));
  ASSERT_OK(memory.Delete("step-00000010/manifest.pb.abandoned"));
  ASSERT_OK(WriteAll(memory, "step-00000010/manifest.pb", manifest));
  EXPECT_OK(LoadCheckpoint(memory, "step-00000010", OneTensor(elements)));
}

}  // namespace
}  // namespace tessera::ckpt
