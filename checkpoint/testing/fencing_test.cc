// Two runs that save the same step. The first stands still at one of its operations, as a process
// does that is stopped, swapped out or cut off from its file system; the second saves; then the
// first one continues. Whatever was committed stays as it is, to the last byte, and is complete.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/collective/thread_process_group.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/storage/fault_storage.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/storage/temporary_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, rounds, 20, "Rounds of the test that stops a process, each at another operation.");

namespace tessera::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr int64_t kElements = 1024;  // of each rank
constexpr int64_t kStep = 7;

// One rank of a run that saves `value` in every element.
absl::Status SaveAsRank(Storage& storage, ProcessGroup& group, float value,
                        absl::Duration deadline = absl::Minutes(5), int64_t step = kStep) {
  std::vector<float> elements(kElements, value);
  ShardedTensor tensor = {.name = "x", .global_shape = {group.size() * kElements}};
  tensor.shards = {
      Shard::Of(elements, {.global_offset = {group.rank() * kElements}, .shape = {kElements}})};
  return Save(storage, "", step, {{tensor}},
              {.group = &group,
               .deadline = deadline,
               .checksum_chunk_bytes = 4096,
               .io_threads = 2,
               .staging_bytes = 16384})
      .status();
}

// A whole run with a storage for each rank; rank 0's result.
absl::Status SaveAsRun(const std::string& root, float value, int64_t step = kStep) {
  absl::Status result;
  RunRanks(kRanks, [&](ProcessGroup& group) {
    const auto storage = *OpenPosixStorage(root, {.create_root = true});
    const absl::Status status = SaveAsRank(*storage, group, value, absl::Minutes(5), step);
    if (group.rank() == 0) result = status;
  });
  return result;
}

// The contents of every file of a committed checkpoint; empty where there is none.
using Ledger = std::map<std::string, std::string>;
Ledger Committed(const std::string& root) {
  Ledger files;
  const fs::path directory = fs::path(root) / CheckpointDirectory("", kStep);
  if (!fs::exists(directory / "manifest.pb")) return files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    files[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(stream), {});
  }
  return files;
}

// Whether `now` has every file of `before` unchanged. Files of attempts that failed may have come.
bool Holds(const Ledger& now, const Ledger& before) {
  for (const auto& [name, contents] : before) {
    const auto at = now.find(name);
    if (at == now.end() || at->second != contents) return false;
  }
  return true;
}

// The value of the committed checkpoint, whose every byte and element is checked.
float SavedValue(const std::string& root) {
  const auto storage = *OpenPosixStorage(root);
  const std::string directory = CheckpointDirectory("", kStep);
  const auto verified = Verify(*storage, directory, {.digests = true});
  EXPECT_TRUE(verified.ok()) << verified.status();
  if (verified.ok()) EXPECT_TRUE(verified->damage.empty()) << verified->damage[0].message;
  const auto checkpoint = Checkpoint::Open(*storage, directory);
  if (!checkpoint.ok()) return -1;
  const auto elements = LoadTensor<float>(*checkpoint, "x");
  EXPECT_TRUE(elements.ok()) << elements.status();
  if (!elements.ok()) return -1;
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
  int64_t arrived() const { return arrived_; }

 private:
  FaultInjectingStorage storage_;
  std::atomic<int64_t> arrived_ = 0;
  std::atomic<bool> happened_ = false;
};

// The whole first run stands still while the second one saves.
TEST(FencingTest, ARunThatStoodStillChangesNothingThatIsCommitted) {
  bool happened = true;
  int second_won = 0;
  for (int64_t operation = 0; happened; ++operation) {
    SCOPED_TRACE(absl::StrCat("before operation ", operation));
    const TemporaryDirectory folder;
    const auto posix = *OpenPosixStorage(folder.path());
    absl::Status first, second = absl::UnknownError("not run");
    Ledger ledger;
    Interrupted interrupted(*posix, operation, [&] {
      second = SaveAsRun(folder.path(), 2);
      ledger = Committed(folder.path());
    });
    RunRanks(kRanks, [&](ProcessGroup& group) {
      const absl::Status status = SaveAsRank(interrupted.storage(), group, 1);
      if (group.rank() == 0) first = status;
    });
    happened = interrupted.happened();
    if (!happened) {
      EXPECT_TRUE(first.ok()) << first;
      break;
    }
    EXPECT_TRUE(second.ok() || absl::IsAlreadyExists(second)) << second;
    EXPECT_NE(first.ok(), second.ok()) << first << "; " << second;
    EXPECT_FALSE(ledger.empty());
    EXPECT_TRUE(Holds(Committed(folder.path()), ledger));
    EXPECT_EQ(SavedValue(folder.path()), second.ok() ? 2 : 1) << first << "; " << second;
    second_won += second.ok() ? 1 : 0;
    // Nothing is left of what was set aside.
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
      EXPECT_EQ(entry.path().filename(), CheckpointDirectory("", kStep));
    }
  }
  EXPECT_GT(second_won, 10);
}

// Rank 1 stands still, rank 0 gives up, and the second run saves before rank 1 continues.
TEST(FencingTest, ARankThatStoodStillChangesNothingThatIsCommitted) {
  constexpr absl::Duration kDeadline = absl::Milliseconds(400);
  int64_t operation = 0;
  for (int starved = 0; starved < 20;) {
    SCOPED_TRACE(absl::StrCat("before operation ", operation, " of rank 1"));
    const TemporaryDirectory folder;
    const auto posix = *OpenPosixStorage(folder.path());
    std::atomic<bool> first_is_over = false;
    absl::Status first, second;
    Ledger ledger;
    Interrupted interrupted(*posix, operation, [&] {
      while (!first_is_over) std::this_thread::yield();
      second = SaveAsRun(folder.path(), 2);
      ledger = Committed(folder.path());
    });
    RunRanks(kRanks, [&](ProcessGroup& group) {
      if (group.rank() == 1) {
        SaveAsRank(interrupted.storage(), group, 1, kDeadline).IgnoreError();
        return;
      }
      first = SaveAsRank(*posix, group, 1, kDeadline);
      first_is_over = true;
    });
    if (first.ok()) break;  // rank 1 has no such operation
    if (!interrupted.happened()) {
      ++starved;  // a busy machine: a deadline passed before
      continue;
    }
    ++operation;
    ASSERT_TRUE(second.ok()) << second;
    EXPECT_TRUE(Holds(Committed(folder.path()), ledger));
    EXPECT_EQ(SavedValue(folder.path()), 2);
  }
  EXPECT_GT(operation, 4);
}

// A run that stands before its commit continues while another one deletes what is incomplete, at
// each operation of that one in turn. What it then commits is whole, and stays.
TEST(FencingTest, ALateCommitIsNeverDeletedAsIncomplete) {
  const std::vector<std::function<absl::Status(Storage&)>> ways = {
      [](Storage& storage) { return Prune(storage, "", 5); },
      [](Storage& storage) { return Retention(storage, "", {.newest = 5}).Apply(absl::Now()); },
      [](Storage& storage) { return EmptyRollingSlot(storage, "").status(); }};
  for (size_t way = 0; way < ways.size(); ++way) {
    const bool rolling = way == 2;
    int committed = 0;
    bool happened = true;
    for (int64_t operation = 0; happened; ++operation) {
      SCOPED_TRACE(absl::StrCat("way ", way, ", before operation ", operation));
      const TemporaryDirectory folder;
      const std::string root = rolling ? absl::StrCat(folder.path(), "/rolling-0") : folder.path();
      fs::create_directories(root);
      if (!rolling) {
        ASSERT_TRUE(SaveAsRun(root, 3, kStep + 1).ok());
      }
      std::promise<void> stands, continues;
      absl::Status late;
      std::thread run([&] {
        const auto posix = *OpenPosixStorage(root);
        FaultInjectingStorage storage(*posix);
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
        SingleProcessGroup alone;
        late = SaveAsRank(storage, alone, 1);
      });
      stands.get_future().wait();
      const auto posix = *OpenPosixStorage(folder.path());
      {
        Interrupted interrupted(*posix, operation, [&] {
          continues.set_value();
          run.join();
        });
        const absl::Status deleted = ways[way](interrupted.storage());
        EXPECT_TRUE(deleted.ok()) << deleted;
        happened = interrupted.happened();
      }
      if (!happened) {
        continues.set_value();
        run.join();
        EXPECT_FALSE(late.ok());
      }
      EXPECT_EQ(Committed(root).empty(), !late.ok()) << late;
      if (late.ok()) EXPECT_EQ(SavedValue(root), 1);
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
    const TemporaryDirectory folder;
    const auto posix = *OpenPosixStorage(folder.path());
    FaultInjectingStorage storage(*posix);
    storage.MisreportRenames(commits, reply);
    SingleProcessGroup alone;
    const absl::Status saved = SaveAsRank(storage, alone, 1);
    EXPECT_EQ(saved.ok(), absl::IsAlreadyExists(reply)) << saved;
    EXPECT_EQ(SavedValue(folder.path()), 1);
    EXPECT_EQ(Committed(folder.path()).size(), 2u);
    EXPECT_TRUE(absl::IsAlreadyExists(SaveAsRun(folder.path(), 2)));
    EXPECT_EQ(SavedValue(folder.path()), 1);
  }
}

// Saves 1 in every element; returns the number of operations. `call` precedes that one.
int64_t SaveInterrupted(const std::string& root, int64_t operation, std::function<void()> call,
                        absl::Status* result) {
  const auto posix = *OpenPosixStorage(root, {.create_root = true});
  Interrupted interrupted(*posix, operation, std::move(call));
  RunRanks(kRanks, [&](ProcessGroup& group) {
    const absl::Status status = SaveAsRank(interrupted.storage(), group, 1);
    if (group.rank() == 0) *result = status;
  });
  return interrupted.arrived();
}

int64_t CountOperations() {
  const TemporaryDirectory folder;
  absl::Status saved;
  const int64_t count = SaveInterrupted(folder.path(), -1, nullptr, &saved);
  EXPECT_TRUE(saved.ok()) << saved;
  return count;
}

// A process that is really stopped, before each operation of its save: all of them in as many
// rounds, evenly spread ones in fewer.
TEST(FencingTest, AStoppedProcessChangesNothingThatIsCommitted) {
  const int rounds = absl::GetFlag(FLAGS_rounds);
  const int64_t operations = CountOperations();
  std::map<std::string, int> outcomes;
  int stops = 0;
  for (int round = 0; round < rounds; ++round) {
    const int64_t operation =
        rounds < operations ? round * operations / rounds : round % operations;
    SCOPED_TRACE(absl::StrCat("before operation ", operation));
    const TemporaryDirectory folder;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      absl::Status saved;
      SaveInterrupted(
          folder.path(), operation, [] { kill(getpid(), SIGSTOP); }, &saved);
      _exit(saved.ok() ? 0 : 1);
    }
    int state = 0;
    ASSERT_EQ(waitpid(child, &state, WUNTRACED), child);
    const absl::Status second = SaveAsRun(folder.path(), 2);
    EXPECT_TRUE(second.ok() || absl::IsAlreadyExists(second)) << second;
    const Ledger ledger = Committed(folder.path());
    EXPECT_FALSE(ledger.empty());
    const bool stopped = WIFSTOPPED(state);
    if (stopped) {
      ++stops;
      kill(child, SIGCONT);
      ASSERT_EQ(waitpid(child, &state, 0), child);
    }
    ASSERT_TRUE(WIFEXITED(state));
    EXPECT_NE(WEXITSTATUS(state) == 0, second.ok()) << second;
    EXPECT_TRUE(Holds(Committed(folder.path()), ledger));
    EXPECT_EQ(SavedValue(folder.path()), second.ok() ? 2 : 1);
    ++outcomes[absl::StrCat(stopped ? "stopped" : "over", ", the ",
                            second.ok() ? "second" : "first", " run's checkpoint")];
  }
  // The last operations of one save may be missing in another.
  EXPECT_GT(stops, rounds / 2);
  for (const auto& [outcome, count] : outcomes) std::printf("%s: %d\n", outcome.c_str(), count);
}

}  // namespace
}  // namespace tessera::ckpt

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  return RUN_ALL_TESTS();
}
