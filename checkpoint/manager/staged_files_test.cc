// Resumes of several ranks, on two hosts, that check the staged files there.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"
#include "storage/tiered/staging_folder.h"
#include "storage/tiered/tiered_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kHosts = 2;
constexpr int kRanksOfHost = 3;
constexpr int kAllRanks = kHosts * kRanksOfHost;
constexpr int64_t kRowsOfRank = 1000;

class StagedFilesTest : public ::testing::Test {
 protected:
  StagedFilesTest() {
    for (int host = 0; host < kHosts; ++host) {
      hosts_.push_back(*OpenStagingFolder(absl::StrCat(folder_.path(), "/", host)));
    }
    Save();
  }

  // Calls body(group, manager, staging) on every rank, each with a staging tier on its host.
  void OnRanks(const std::function<void(ProcessGroup&, CheckpointManager&,
                                        FaultInjectingStorage& staging)>& body) {
    RunRanks(kAllRanks, [&](ProcessGroup& group) {
      auto staging = std::make_unique<FaultInjectingStorage>(*hosts_[group.rank() / kRanksOfHost]);
      FaultInjectingStorage& of_rank = *staging;
      auto storage = std::make_shared<TieredStorage>(
          std::move(staging), std::make_unique<FaultInjectingStorage>(remote_));
      CheckpointManagerOptions options;
      options.save.group = &group;
      options.save.timeout = absl::Seconds(20);
      options.schedule = {.interval_steps = 1, .last_step = 1000};
      options.notes = [&](const std::string& note) {
        const MutexLock lock(&mutex_);
        notes_.push_back(note);
      };
      const auto manager = OrFail(CheckpointManager::Open(storage, nullptr, std::move(options)));
      body(group, *manager, of_rank);
    });
  }

  void Save() {
    OnRanks([](ProcessGroup& group, CheckpointManager& manager, FaultInjectingStorage&) {
      std::vector<float> part(kRowsOfRank);
      ShardedTensor tensor = {.name = "weight", .global_shape = {kAllRanks * kRowsOfRank}};
      tensor.shards = {
          Shard::Of(part, {.global_offset = {group.rank() * kRowsOfRank}, .shape = {kRowsOfRank}})};
      EXPECT_OK(manager.TrySave({.step = 1}, {{tensor}}));
    });
    for (int host = 0; host < kHosts; ++host) EXPECT_THAT(Staged(host), SizeIs(kRanksOfHost));
  }

  // Resumes from the checkpoint without loading it, so that nothing but the check reads.
  void Resume(const std::function<void(FaultInjectingStorage&)>& prepare = nullptr) {
    OnRanks([&](ProcessGroup&, CheckpointManager& manager, FaultInjectingStorage& staging) {
      if (prepare) prepare(staging);
      const auto resumed = manager.TryResume([](const Checkpoint&) { return absl::OkStatus(); });
      EXPECT_OK(resumed);
      EXPECT_TRUE(resumed->checkpoint.has_value());
      const MutexLock lock(&mutex_);
      for (const Operation& operation : staging.operations()) {
        if (operation.kind != OperationKind::kReadAt) continue;
        read_bytes_[operation.path] += operation.size_bytes;
        readers_[operation.path].insert(&staging);
      }
    });
  }

  std::vector<std::string> Staged(int host) {
    return hosts_[host]->List(StepDirectoryName(1)).value_or(std::vector<std::string>());
  }

  const TestFolder folder_;
  MemoryStorage remote_;
  std::vector<std::unique_ptr<Storage>> hosts_;
  Mutex mutex_;
  std::vector<std::string> notes_;
  std::map<std::string, uint64_t> read_bytes_;  // from staging tiers, by path
  std::map<std::string, std::set<const Storage*>> readers_;
};

TEST_F(StagedFilesTest, TheRanksOfAHostShareTheFiles) {
  Resume();
  EXPECT_THAT(read_bytes_, SizeIs(kAllRanks));
  std::set<const Storage*> ranks;
  for (const auto& [path, bytes] : read_bytes_) {
    EXPECT_EQ(bytes, (*remote_.Open(path))->size_bytes()) << path;
    EXPECT_THAT(readers_[path], SizeIs(1)) << path;
    ranks.insert(*readers_[path].begin());
  }
  EXPECT_THAT(ranks, SizeIs(kAllRanks)) << "every rank has a share";
}

TEST_F(StagedFilesTest, DamagedCopiesAreDeletedOnTheirHostAlone) {
  const std::string name = Staged(1).front();
  const std::string path = JoinPath(StepDirectoryName(1), name);
  std::string bytes = *ReadAll(*hosts_[1], path, 1 << 20);
  bytes.back() ^= 1;
  ASSERT_OK(WriteAll(*hosts_[1], path, bytes));
  Resume();
  EXPECT_THAT(Staged(0), SizeIs(kRanksOfHost));
  EXPECT_THAT(Staged(1), SizeIs(kRanksOfHost - 1));
  EXPECT_TRUE(absl::IsNotFound(hosts_[1]->Open(path).status()));
  EXPECT_THAT(
      notes_,
      Contains(AllOf(HasSubstr("damaged copies in "), HasSubstr("are deleted: 1"))).Times(1));
}

TEST_F(StagedFilesTest, ACopyThatIsOnceReadWrongStays) {
  for (const int64_t times : {2, 3}) {
    Resume([&](FaultInjectingStorage& staging) {
      for (const std::string& name : Staged(0)) {
        staging.CorruptReads(JoinPath(StepDirectoryName(1), name), 100, std::byte{1}, times);
      }
    });
    EXPECT_THAT(Staged(0), SizeIs(times == 2 ? kRanksOfHost : 0));
  }
}

TEST_F(StagedFilesTest, CopiesThatCannotBeReadStayAndAreNoted) {
  for (const absl::Status& error :
       {absl::UnavailableError("injected"), absl::DataLossError("injected")}) {
    notes_.clear();
    Resume([&](FaultInjectingStorage& staging) {
      staging.FailWhere(
          [](const Operation& operation) { return operation.kind == OperationKind::kReadAt; },
          error);
    });
    for (int host = 0; host < kHosts; ++host) EXPECT_THAT(Staged(host), SizeIs(kRanksOfHost));
    EXPECT_THAT(
        notes_,
        Contains(AllOf(HasSubstr("cannot be checked: 1"), HasSubstr("injected"))).Times(kAllRanks));
  }
}

TEST_F(StagedFilesTest, OlderCopiesThatCannotBeDeletedAreNoted) {
  OnRanks([](ProcessGroup&, CheckpointManager& manager, FaultInjectingStorage& staging) {
    staging.FailWhere(
        [](const Operation& operation) { return operation.kind == OperationKind::kDeleteTree; },
        absl::UnavailableError("injected"));
    ASSERT_OK(manager.TrySave({.step = 2}, StateDict()));
    const std::vector<SaveOutcome> outcomes = manager.Poll();
    ASSERT_THAT(outcomes, SizeIs(1));
    ASSERT_OK(outcomes[0].report);
    EXPECT_THAT(outcomes[0].report->note,
                AllOf(HasSubstr("older copies are still there: "), HasSubstr("injected")));
  });
}

}  // namespace
}  // namespace tessera::ckpt
