// A machine without more memory: a save or a load ends with an error, and ends no process and no
// other thread's wait.

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fail_allocation.h"
#include "base/is_waiting.h"
#include "base/testing.h"
#include "base/threads.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/manager/stop_file.h"
#include "checkpoint/plan/load_plan.h"
#include "checkpoint/plan/share_reads.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/forwarding_storage.h"
#include "storage/posix_storage.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

bool IsNoMemory(const absl::Status& status) { return absl::IsResourceExhausted(status); }

// A group in which rank 0 lacks memory for one message that it sends. From then on, the others miss
// messages after a moment.
class ForgetfulGroup final : public ForwardingGroup {
 public:
  ForgetfulGroup(ProcessGroup& base, int64_t message, std::atomic<bool>& forgotten)
      : ForwardingGroup(base), left_(message), forgotten_(forgotten) {}
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    if (rank() != 0) return Missed(ForwardingGroup::StartSend(data, destination));
    if (left_-- == 0) {
      forgotten_ = true;
      throw std::bad_alloc();
    }
    return ForwardingGroup::StartSend(data, destination);
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    if (rank() != 0) return Missed(ForwardingGroup::StartReceive(data, source));
    return ForwardingGroup::StartReceive(data, source);
  }

 private:
  struct Message final : PendingMessage {
    Message(std::unique_ptr<PendingMessage> base, const std::atomic<bool>& forgotten)
        : base(std::move(base)), forgotten(forgotten) {}
    absl::Status Wait(absl::Duration /*timeout*/) override {
      while (true) {
        const bool is_last = forgotten;
        const absl::Status status = base->Wait(absl::Milliseconds(20));
        if (is_last || !absl::IsDeadlineExceeded(status)) return status;
      }
    }
    const std::unique_ptr<PendingMessage> base;
    const std::atomic<bool>& forgotten;
  };
  std::unique_ptr<PendingMessage> Missed(std::unique_ptr<PendingMessage> message) const {
    return std::make_unique<Message>(std::move(message), forgotten_);
  }

  int64_t left_;
  std::atomic<bool>& forgotten_;
};

// Lets an allocation of this rank fail that follows its first broadcast.
class ForgetsAfterBroadcast final : public ForwardingGroup {
 public:
  ForgetsAfterBroadcast(ProcessGroup& base, int64_t allocation)
      : ForwardingGroup(base), allocation_(allocation) {}
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    absl::StatusOr<std::string> reply = ForwardingGroup::Broadcast(from_rank_0, timeout);
    if (allocation_ < INT64_MAX && !fail_.has_value()) fail_.emplace(allocation_);
    return reply;
  }

 private:
  const int64_t allocation_;
  std::optional<FailAllocation> fail_;
};

class NoMemoryTest : public testing::Test {
 protected:
  NoMemoryTest() {
    std::mt19937_64 random(TestSeed());
    for (int t = 0; t < 4; ++t) {
      tensors_.push_back(RandomTensor(absl::StrCat("t", t), TensorRole::kWeight, DType::kF32,
                                      {260, 1024}, random));
      state_.Add(tensors_.back(), {WholeBox(tensors_.back().shape)}, true);
    }
    options_.save.checksum_chunk_bytes = 64 << 10;
    options_.save.io_threads = 1;
  }

  // Nothing of the state is read any more: the next save has other contents, which are intact.
  void ExpectThatSavesWork(Storage& storage, AsyncSaver& saver) {
    saver.Start(2, state_.dict);
    saver.WaitUntilAllCopied();
    for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
    ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(storage, StepDirectoryName(2)));
    ASSERT_OK_AND_ASSIGN(const VerifyReport verified, saved.Verify({.digests = true}));
    EXPECT_TRUE(verified.damage.empty());
  }

  std::vector<WholeTensor> tensors_;
  LocalState state_;
  AsyncSaveOptions options_;
};

// The thread that trains helps to copy, while the disk stands still.
TEST_F(NoMemoryTest, AThreadThatWaitsForTheCopyEndsTheSaveAndGoesOn) {
  for (const bool and_later : {false, true}) {
    int64_t failures = 0, failed_saves = 0;
    bool happened = true;
    for (int64_t allocation = 0; happened; ++allocation) {
      SCOPED_TRACE(absl::StrCat("allocation ", allocation, and_later ? " and all later ones" : ""));
      MemoryStorage storage;
      FaultInjectingStorage slow(storage);
      slow.SetPreferredWriteBytes(1 << 20);
      slow.SetInPlaceAlignmentBytes(1);
      std::atomic<bool> begun = false, continues = false;
      slow.BeforeEach([&](const Operation& operation) {
        const bool is_data = operation.path.ends_with(".safetensors");
        if (operation.kind != OperationKind::kWriteAt || !is_data) return;
        begun = true;
        while (!continues) std::this_thread::yield();
      });
      AsyncSaver saver(slow, options_);
      saver.Start(1, state_.dict);
      while (!begun) std::this_thread::yield();
      std::atomic<const FailAllocation*> failing = nullptr;
      std::thread disk([&, training = gettid()] {
        while (failing == nullptr) std::this_thread::yield();
        // Until the other thread sleeps: nothing is left that it can copy.
        for (int waits = 0; waits < 100 && !failing.load()->happened();) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          waits = IsWaiting(training) ? waits + 1 : 0;
        }
        continues = true;
      });
      {
        const FailAllocation fail(allocation, and_later);
        failing = &fail;
        saver.WaitUntilAllCopied();
        happened = fail.happened();
        disk.join();
      }
      const std::vector<SaveOutcome> outcomes = saver.Finish();
      ASSERT_EQ(outcomes.size(), 1);
      EXPECT_TRUE(outcomes[0].report.ok() || (happened && IsNoMemory(outcomes[0].report.status())))
          << outcomes[0].report.status();
      failures += happened ? 1 : 0;
      failed_saves += outcomes[0].report.ok() ? 0 : 1;
      ExpectThatSavesWork(storage, saver);
    }
    EXPECT_GT(failures, 3);
    // The disk may have completed the others before the thread could end them.
    EXPECT_GT(failed_saves, 0);
  }
}

// Lets an allocation of the saving thread fail before it creates the first file. It asks for the
// traits once it has a plan.
class ShortOfMemory final : public ForwardingStorage {
 public:
  // Counts the allocations from this call of Traits() on.
  ShortOfMemory(Storage& base, int from_call, int64_t allocation)
      : ForwardingStorage(base), from_call_(from_call), allocation_(allocation) {}

  StorageTraits Traits() override {
    if (++calls == from_call_) fail_.emplace(allocation_);
    return ForwardingStorage::Traits();
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override {
    if (calls_before_file == 0) calls_before_file = calls;
    if (fail_.has_value()) allocations = fail_->count();
    fail_.reset();
    return ForwardingStorage::Create(path, size_hint_bytes);
  }

  int calls = 0, calls_before_file = 0;
  int64_t allocations = 0;  // up to the first file

 private:
  const int from_call_;
  const int64_t allocation_;
  std::optional<FailAllocation> fail_;
};

// The thread that trains waits for the copy when the thread that saves fails, before it copies.
// Before that it fails while it describes its files, where no thread waits yet.
TEST_F(NoMemoryTest, NoThreadWaitsForASaveThatEndedForLackOfMemory) {
  constexpr int64_t kLast = 10;
  int from_call = 0;
  const auto save = [&](ShortOfMemory& scarce) {
    AsyncSaver saver(scarce, options_);
    saver.Start(1, state_.dict);
    saver.WaitUntilAllCopied();
    return saver.Finish()[0].report.status();
  };
  int64_t allocations = 0;
  for (int dry_run = 0; dry_run < 2; ++dry_run) {
    MemoryStorage storage;
    ShortOfMemory scarce(storage, from_call, INT64_MAX);
    ASSERT_OK(save(scarce));
    from_call = scarce.calls_before_file;
    allocations = scarce.allocations;
  }
  int failed = 0;
  for (int64_t allocation = allocations - kLast; allocation < allocations; ++allocation) {
    SCOPED_TRACE(absl::StrCat("allocation ", allocation));
    MemoryStorage storage;
    {
      ShortOfMemory scarce(storage, from_call, allocation);
      const absl::Status saved = save(scarce);
      EXPECT_TRUE(saved.ok() || IsNoMemory(saved)) << saved;
      failed += saved.ok() ? 0 : 1;
    }
    AsyncSaver saver(storage, options_);
    ExpectThatSavesWork(storage, saver);
  }
  EXPECT_GT(failed, kLast / 2);
}

// Without memory for the reason, too, why there is no thread.
TEST_F(NoMemoryTest, ASaveThatIsStartedWithoutAThreadEnds) {
  LimitThreads(0);
  for (const bool and_later : {false, true}) {
    int64_t started = 0;
    for (int64_t allocation = 0; started < 6; ++allocation) {
      SCOPED_TRACE(absl::StrCat("allocation ", allocation, and_later ? " and all later ones" : ""));
      MemoryStorage storage;
      AsyncSaver saver(storage, options_);
      bool begun = true;
      try {
        const FailAllocation fail(allocation, and_later);
        saver.Start(1, state_.dict);
        ++started;
      } catch (const std::bad_alloc&) {
        begun = false;
      }
      EXPECT_EQ(saver.Finish().size(), begun ? 1 : 0);
      ExpectThatSavesWork(storage, saver);
    }
  }
  LimitThreads(-1);
}

// The other ranks learn it, instead of waiting for this one's next operation.
TEST_F(NoMemoryTest, ARankThatCannotDescribeItsStateEndsTheSaveOfAll) {
  MemoryStorage storage;
  const auto save = [&](const SaveContext& context) {
    return RunSave(context, {.step = 1}, state_.dict, nullptr).status();
  };
  const auto prepare = [&](const SaveContext& context) { return PlanAhead(context, state_.dict); };
  for (const auto& call :
       std::vector<std::function<absl::Status(const SaveContext&)>>{save, prepare}) {
    RunRanks(2, [&](ProcessGroup& group) {
      PlanCache plan_cache;
      StagingPool staging;
      const SaveHooks hooks = {};
      const SaveContext context = {.storage = storage,
                                   .hooks = hooks,
                                   .group = group,
                                   .options = options_.save,
                                   .copy_threads = 0,
                                   .plan_cache = plan_cache,
                                   .staging = staging};
      std::optional<FailAllocation> fail;
      if (group.rank() == 1) fail.emplace(0);
      const absl::Status saved = call(context);
      fail.reset();
      EXPECT_TRUE(IsNoMemory(saved)) << saved;
      EXPECT_THAT(std::string(saved.message()), HasSubstr("not enough memory to describe"));
    });
  }
}

// Where no thread reads it: the rank takes part in the decision of all.
TEST(StopFileWithoutMemoryTest, IsReadByTheNextPoll) {
  const TestFolder folder;
  folder.Write("stop", "7");
  bool happened = true;
  for (int64_t allocation = 0; happened; ++allocation) {
    LimitThreads(0);
    StopFile file(folder.File("stop"), "", absl::ZeroDuration());
    LimitThreads(-1);
    {
      const FailAllocation fail(allocation);
      EXPECT_EQ(file.Poll().step, fail.happened() ? 0 : 7);
      happened = fail.happened();
    }
    EXPECT_EQ(file.Poll().step, 7);
  }
}

TEST_F(NoMemoryTest, ALoadOfOneProcessEndsWithAnError) {
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, state_.dict, options_.save));
  FaultInjectingStorage faulty(storage);
  ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(faulty, StepDirectoryName(1)));
  const int64_t operations_before = faulty.operation_count();
  LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
  ASSERT_OK(saved.Load(state.dict));
  const int64_t operations = faulty.operation_count() - operations_before;
  ASSERT_GE(operations, 2);
  for (int64_t operation = 0; operation < operations; ++operation) {
    std::atomic<int64_t> left = operation;
    faulty.BeforeEach([&](const Operation&) {
      if (left-- == 0) throw std::bad_alloc();
    });
    const absl::Status loaded = saved.Load(state.dict).status();
    EXPECT_TRUE(IsNoMemory(loaded)) << operation << ": " << loaded;
    faulty.ClearFaults();
  }
}

// Every rank wants everything, so that ranks read for each other.
TEST_F(NoMemoryTest, ALoadOfSeveralRanksEndsWithTheErrorOfTheOneWithoutMemory) {
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, state_.dict, options_.save));
  LoadOptions options;
  options.timeout = absl::Seconds(20);
  FaultInjectingStorage faulty(storage);  // of rank 1
  faulty.BeforeEach([&](const Operation& operation) {
    const bool is_data = operation.path.ends_with(".safetensors");
    if (operation.kind == OperationKind::kReadAt && is_data) throw std::bad_alloc();
  });
  RunRanks(3, [&](ProcessGroup& group) {
    LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
    Storage& mine = group.rank() == 1 ? static_cast<Storage&>(faulty) : storage;
    const absl::Status loaded =
        LoadCheckpoint(mine, StepDirectoryName(1), state.dict, On(group, options)).status();
    EXPECT_TRUE(IsNoMemory(loaded)) << loaded;
  });
}

TEST_F(NoMemoryTest, ARankWithoutMemoryBeforeItReadsEndsTheLoadOfAll) {
  constexpr int64_t kInTheManifest = 20;
  const TestFolder folder;
  const std::unique_ptr<Storage> storage = OrFail(OpenPosixStorage(folder.path()));
  ASSERT_OK(CheckpointFolder(*storage).Save(1, state_.dict, options_.save));
  LoadOptions options;
  options.timeout = absl::Seconds(20);
  for (const bool at_the_begin : {true, false}) {
    RunRanks(2, [&](ProcessGroup& group) {
      ASSERT_OK_AND_ASSIGN(const Checkpoint saved,
                           Checkpoint::Open(*storage, StepDirectoryName(1)));
      LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
      const bool is_short = group.rank() == 1;
      ForgetsAfterBroadcast forgetful(group,
                                      is_short && !at_the_begin ? kInTheManifest : INT64_MAX);
      const LoadOptions mine = On(forgetful, options);
      std::optional<FailAllocation> fail;
      if (is_short && at_the_begin) fail.emplace(0);
      const absl::Status loaded = saved.Load(state.dict, mine).status();
      fail.reset();
      EXPECT_TRUE(IsNoMemory(loaded)) << loaded;
    });
  }
}

// The rank whose memory is missing between two agreements does not know what the others wait for.
TEST_F(NoMemoryTest, AGroupThatARankHasLeftFailsAtOnce) {
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, state_.dict, options_.save));
  for (const bool saves : {false, true}) {
    RunRanks(2, [&](ProcessGroup& group) {
      const bool leaves = group.rank() == 1;
      ImpatientGroup impatient(group, leaves ? INT_MAX : 1);
      ForgetsAfterBroadcast forgetful(impatient, leaves ? 0 : INT64_MAX);
      LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
      const absl::Status left =
          saves
              ? CheckpointFolder(storage).Save(2, state.dict, On(forgetful, options_.save)).status()
              : LoadCheckpoint(storage, StepDirectoryName(1), state.dict,
                               On(forgetful, LoadOptions()))
                    .status();
      const absl::Status next = AgreeOnStatus(impatient, absl::OkStatus(), absl::Hours(1));
      EXPECT_FALSE(next.ok());
      if (!leaves) return;
      EXPECT_TRUE(IsNoMemory(left)) << left;
      EXPECT_THAT(std::string(left.message()), HasSubstr("the group cannot be used again"));
      EXPECT_EQ(next, left);
    });
  }
}

// Lets each allocation of body() fail in turn.
void FailEachAllocation(const std::function<void()>& body) {
  bool happened = true;
  for (int64_t allocation = 0; happened; ++allocation) {
    const FailAllocation fail(allocation);
    try {
      body();
    } catch (const std::bad_alloc&) {
    }
    happened = fail.happened();
  }
}

// Some hash tables free memory twice if they cannot grow.
TEST_F(NoMemoryTest, TablesThatCannotGrowEndNoProcess) {
  std::mt19937_64 random(TestSeed());
  std::vector<WholeTensor> tensors;
  for (int t = 0; t < 9; ++t) {
    tensors.push_back(
        RandomTensor(absl::StrCat("t", t), TensorRole::kWeight, DType::kF32, {4}, random));
  }
  LocalState state = RowsOf(tensors);
  FailEachAllocation([&] {
    MemoryStorage storage;
    CheckpointFolder(storage).Save(1, state.dict, options_.save).IgnoreError();
  });
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, state.dict, options_.save));
  FailEachAllocation([&] {
    LoadCheckpoint(storage, StepDirectoryName(1), state.dict, {.verify_digests = true})
        .IgnoreError();
  });
  // What several ranks need, each some of the tensors.
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(storage, StepDirectoryName(1)));
  std::vector<std::string> needs;
  for (uint32_t rank = 0; rank < 5; ++rank) {
    std::vector<WantedBox> wanted;
    for (uint32_t t = rank; t < 9; ++t) wanted.push_back({t, WholeBox({4})});
    ASSERT_OK_AND_ASSIGN(const LoadPlan plan, PlanLoad(manifest, wanted));
    needs.push_back(DescribeNeeds(manifest, plan, 1 << 20).SerializeAsString());
  }
  FailEachAllocation([&] { ShareReads(manifest, needs).IgnoreError(); });
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      storage.Read(JoinPath(StepDirectoryName(1), manifest.files(0).path()), 1 << 20));
  FailEachAllocation(
      [&] { ParseSafetensorsHeader(file.contents, file.contents.size()).IgnoreError(); });
}

// The rank's own threads end, and the other ranks miss it. Rank 0's first 12 messages arrange what
// it reads for others.
TEST_F(NoMemoryTest, ARankWithoutMemoryForItsMessagesEndsItsLoad) {
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, state_.dict, options_.save));
  std::atomic<bool> forgotten = false;
  RunRanks(3, [&](ProcessGroup& group) {
    ForgetfulGroup forgetful(group, 14, forgotten);
    LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
    LoadOptions options;
    options.staging_bytes = 1;
    const absl::Status loaded =
        LoadCheckpoint(storage, StepDirectoryName(1), state.dict, On(forgetful, options)).status();
    EXPECT_FALSE(loaded.ok());
    if (group.rank() == 0) {
      EXPECT_THAT(std::string(loaded.message()),
                  HasSubstr("not enough memory to read for other ranks"));
    }
  });
}

}  // namespace
}  // namespace tessera::ckpt
