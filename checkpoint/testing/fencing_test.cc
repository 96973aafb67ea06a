// Two runs on a disk: one stands still at one of its operations, as a process does that is stopped,
// swapped out or cut off from its file system, while the other one works. In tests/worlds/jobs
// whole jobs never meet on a disk, because they lock their folder.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"

namespace tessera::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kElements = 1024;
constexpr int64_t kStep = 7;

// Saves `value` in every element.
absl::Status SaveValue(Storage& storage, float value, int64_t step = kStep) {
  std::vector<float> elements(kElements, value);
  return CheckpointFolder(storage)
      .Save(step, OneTensor(elements), {.checksum_chunk_bytes = 1024})
      .status();
}

// The value of the committed checkpoint, whose every byte and element is checked; -1: there is
// none.
float SavedValue(Storage& storage) {
  const std::string directory = StepDirectoryName(kStep);
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

// A storage of which one operation, in the order of their arrival, is preceded by a call.
class Interrupted {
 public:
  Interrupted(Storage& base, int64_t operation, std::function<void()> call) : storage_(base) {
    storage_.FailWhere(
        [this, operation, call = std::move(call)](const Operation&) {
          if (arrived_++ == operation) {
            happened_ = true;
            call();
          }
          return false;
        },
        absl::InternalError("no operation fails"));
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
        storage.FailWhere(
            [&](const Operation& operation) {
              if (operation.kind == OperationKind::kRename &&
                  operation.to_path.ends_with("/manifest.pb")) {
                stands.set_value();
                continues.get_future().wait();
              }
              return false;
            },
            absl::InternalError("no operation fails"));
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
    EXPECT_TRUE(absl::IsAlreadyExists(SaveValue(*posix, 2)));
    EXPECT_EQ(SavedValue(*posix), 1);
  }
}

}  // namespace
}  // namespace tessera::ckpt
