// Guarantees of asynchronous saves besides the checkpoint itself: when memory may be overwritten,
// how errors are reported, the effect of a second save, how much memory is used.

#include "checkpoint/include/async_saver.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <latch>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/testing.h"
#include "base/trace.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/fault_storage.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string SaverMessage(const absl::Status& status) { return std::string(status.message()); }

AsyncSaveOptions SmallPieces() {
  AsyncSaveOptions options;
  options.save.checksum_chunk_bytes = 4096;
  options.save.timeout = absl::Seconds(20);
  return options;
}

// For FaultInjectingStorage::BeforeEach(): lets writes wait for the gate, and other threads for a
// file that is synced.
std::function<void(const Operation&)> WritesWaitFor(std::latch& gate) {
  return [&gate](const Operation& operation) {
    if (operation.kind == OperationKind::kWriteAt) gate.wait();
    if (operation.kind == OperationKind::kSync) absl::SleepFor(absl::Milliseconds(20));
  };
}

class AsyncSaverTest : public testing::Test {
 protected:
  AsyncSaverTest() : faulty_(storage_), random_(TestSeed()) {}

  // `count` tensors of 64 KiB, whole on each rank, or half of the rows.
  std::vector<WholeTensor> Tensors(int count) {
    std::vector<WholeTensor> tensors;
    for (int t = 0; t < count; ++t) {
      tensors.push_back(RandomTensor(absl::StrCat("t", t),
                                     t % 2 ? TensorRole::kOptimizerState : TensorRole::kWeight,
                                     DType::kF32, {128, 128}, random_));
    }
    return tensors;
  }

  // Changes the state as training does, immediately after the saver permits it: the last byte of a
  // shard, and then all of it.
  static void Overwrite(AsyncSaver& saver, const StateDict& state) {
    for (const ShardedTensor& tensor : state.tensors) {
      for (const Shard& shard : tensor.shards) {
        const size_t size = ElementCount(shard.box.shape) * ElementSize(tensor.dtype);
        auto* const data = static_cast<std::byte*>(shard.data);
        for (const size_t from : {std::max<size_t>(size, 1) - 1, size_t{0}}) {
          saver.WaitUntilCopied(data + from, size - from);
          std::memset(data + from, 0xEE, size - from);
        }
      }
    }
  }

  void ExpectSaved(const std::vector<WholeTensor>& tensors, int64_t step) {
    const std::string directory = StepDirectoryName(step);
    ASSERT_OK_AND_ASSIGN(const auto verified,
                         VerifyCheckpoint(storage_, directory, {.digests = true, .io_threads = 1}));
    EXPECT_TRUE(verified.damage.empty()) << verified.damage[0].message;
    LocalState state = RowsOf(tensors, 0, 1, /*fill=*/false);
    ASSERT_OK(LoadCheckpoint(storage_, directory, state.dict));
    for (size_t t = 0; t < tensors.size(); ++t) {
      EXPECT_TRUE(LocalState::Holds(state.dict.tensors[t].shards[0], tensors[t]))
          << tensors[t].name;
    }
  }

  // There are no directories of steps other than committed checkpoints.
  void ExpectNothingHalfWritten() {
    const auto list = CheckpointFolder(storage_).List();
    const auto names = storage_.List("");
    ASSERT_TRUE(list.ok() && names.ok());
    EXPECT_EQ(list->size(), names->size());
  }

  MemoryStorage storage_;
  FaultInjectingStorage faulty_;
  SingleProcessGroup group_;
  std::mt19937_64 random_;
};

TEST_F(AsyncSaverTest, WhatIsOverwrittenAfterTheWaitIsNotSaved) {
  const std::vector<WholeTensor> tensors = Tensors(12);
  for (const uint64_t staging_bytes : {UINT64_MAX, uint64_t{256} << 10, uint64_t{4096}}) {
    for (const int copy_threads : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(staging_bytes, " bytes, ", copy_threads, " threads"));
      const int64_t step = CheckpointFolder(storage_).List()->size();
      AsyncSaveOptions options = SmallPieces();
      options.save.staging_bytes = staging_bytes;
      options.copy_threads = copy_threads;
      LocalState state = RowsOf(tensors);
      AsyncSaver saver(storage_, options);
      saver.Start(step, state.dict);
      Overwrite(saver, state.dict);
      const std::vector<SaveOutcome> outcomes = saver.Finish();
      ASSERT_EQ(outcomes.size(), 1);
      ASSERT_OK(outcomes[0].report);
      const SaveReport& report = *outcomes[0].report;
      EXPECT_GE(report.duration, report.copied_after);
      EXPECT_GT(report.copied_after, absl::ZeroDuration());
      EXPECT_GT(report.processor_time, absl::ZeroDuration());
      EXPECT_EQ(report.note.empty(), staging_bytes == UINT64_MAX) << report.note;
      ExpectSaved(tensors, step);
    }
  }
}

TEST_F(AsyncSaverTest, SeveralThreadsWaitForRangesOfAnyKind) {
  for (int round = 0; round < 20; ++round) {
    std::vector<WholeTensor> tensors = Tensors(3);
    tensors.push_back(RandomTensor("odd", TensorRole::kBuffer, DType::kU8, {7, 333, 5}, random_));
    LocalState state;
    for (const WholeTensor& tensor : tensors) {
      state.Add(tensor, RandomCut(tensor.shape, 4, random_), true, &random_);
    }
    AsyncSaveOptions options = SmallPieces();
    options.save.staging_bytes = uint64_t{4096} << (random_() % 8);
    AsyncSaver saver(storage_, options);
    saver.Start(round, state.dict);
    std::vector<std::thread> threads;
    for (const ShardedTensor& tensor : state.dict.tensors) {
      threads.emplace_back([&] { Overwrite(saver, {{tensor}}); });
    }
    for (std::thread& thread : threads) thread.join();
    const std::vector<SaveOutcome> outcomes = saver.Finish();
    ASSERT_TRUE(outcomes.size() == 1 && outcomes[0].report.ok()) << outcomes[0].report.status();
    ExpectSaved(tensors, round);
  }
}

TEST_F(AsyncSaverTest, WaitsOnlyForWhatIsAskedFor) {
  std::latch gate(1);
  faulty_.BeforeEach(WritesWaitFor(gate));
  const std::vector<WholeTensor> tensors = Tensors(8);
  AsyncSaveOptions options = SmallPieces();
  options.save.staging_bytes = 192 << 10;  // of 512 KiB; nothing is written, so nothing is freed
  LocalState state = RowsOf(tensors);
  const Shard& first = state.dict.tensors[0].shards[0];
  AsyncSaver saver(faulty_, options);
  saver.Start(1, state.dict);
  saver.WaitUntilCopied(first.data, 16 << 10);  // returns, although not everything can be copied
  std::string elsewhere(1 << 20, 'x');
  saver.WaitUntilCopied(elsewhere.data(), elsewhere.size());
  EXPECT_TRUE(saver.Poll().empty());
  gate.count_down();
  saver.WaitUntilAllCopied();
  const std::vector<SaveOutcome> outcomes = saver.Finish();
  ASSERT_OK(outcomes[0].report);
  EXPECT_GT(outcomes[0].report->blocked, absl::ZeroDuration());
  ExpectSaved(tensors, 1);
}

TEST_F(AsyncSaverTest, PreparedPlansAndMemoryServeEverySave) {
  const std::vector<WholeTensor> tensors = Tensors(4);
  LocalState state = RowsOf(tensors);
  int64_t asked = 0;
  AsyncSaveOptions options = SmallPieces();
  options.available_memory_bytes = [&] {
    ++asked;
    return uint64_t{1} << 30;
  };
  AsyncSaver saver(storage_, options);
  saver.Prepare(state.dict);
  for (int64_t step = 1; step <= 3; ++step) saver.Start(step, state.dict);
  const std::vector<SaveOutcome> outcomes = saver.Finish();
  ASSERT_EQ(outcomes.size(), 3);
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(outcomes[step - 1].step, step);
    ASSERT_OK(outcomes[step - 1].report);
    ExpectSaved(tensors, step);
  }
  EXPECT_EQ(asked, 1) << "memory was reserved again";
  EXPECT_EQ(saver.Finish().size(), 0);
}

TEST_F(AsyncSaverTest, SecondSaveIsSkippedOnEveryRankWhereOneIsBusy) {
  constexpr int kRanks = 3;
  const std::vector<WholeTensor> tensors = Tensors(4);
  std::latch gate(1);
  faulty_.BeforeEach(WritesWaitFor(gate));
  AsyncSaveOptions options = SmallPieces();
  options.when_busy = AsyncSaveOptions::WhenBusy::kSkip;
  RunRanks(kRanks, [&](ProcessGroup& group) {
    LocalState state = RowsOf(tensors);
    AsyncSaver saver(faulty_, On(group, options));
    saver.Start(1, state.dict);
    saver.Start(2, state.dict);
    if (group.rank() == 1) gate.count_down();
    const std::vector<SaveOutcome> outcomes = saver.Finish();
    ASSERT_EQ(outcomes.size(), 2);
    EXPECT_OK(outcomes[0].report);
    EXPECT_EQ(outcomes[1].step, 2);
    EXPECT_TRUE(absl::IsCancelled(outcomes[1].report.status())) << outcomes[1].report.status();
    EXPECT_THAT(SaverMessage(outcomes[1].report.status()), HasSubstr("skipped"));
    saver.Start(3, state.dict);
    Overwrite(saver, state.dict);
    EXPECT_OK(saver.Finish()[0].report);
  });
  ExpectSaved(tensors, 1);
  ExpectSaved(tensors, 3);
  ExpectNothingHalfWritten();
}

TEST_F(AsyncSaverTest, ErrorsNameRankPhaseAndFileAndTheNextSaveWorks) {
  struct Case {
    OperationKind kind;
    std::string file;
    std::string phase;
  };
  const std::vector<WholeTensor> tensors = Tensors(4);
  for (const Case& c : {Case{OperationKind::kCreate, "model-00002", "writing"},
                        Case{OperationKind::kWriteAt, "model-00002", "writing"},
                        Case{OperationKind::kSync, "optimizer-00002", "syncing"},
                        Case{OperationKind::kRename, "manifest.pb.tmp", "committing"}}) {
    SCOPED_TRACE(absl::StrCat(c.phase, " ", c.file));
    const int64_t step = 10 + 2 * CheckpointFolder(storage_).List()->size();
    RunRanks(2, [&](ProcessGroup& group) {
      LocalState state = RowsOf(tensors, group.rank(), 2);
      AsyncSaver saver(faulty_, On(group, SmallPieces()));
      if (group.rank() == 0) {
        faulty_.FailWhere(
            [&](const Operation& o) {
              return o.kind == c.kind && o.path.find(c.file) != std::string::npos;
            },
            absl::UnavailableError(absl::StrCat(c.file, ": injected")));
      }
      saver.Prepare(state.dict);  // no rank saves before the fault is in place
      saver.Finish();
      saver.Start(step, state.dict);
      saver.WaitUntilAllCopied();
      const std::vector<SaveOutcome> outcomes = saver.Finish();
      ASSERT_EQ(outcomes.size(), 1);
      const absl::Status& status = outcomes[0].report.status();
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_THAT(SaverMessage(status), AllOf(HasSubstr(c.phase), HasSubstr(c.file)));
      if (c.phase != "committing") EXPECT_THAT(SaverMessage(status), HasSubstr("rank 1"));
      if (group.rank() == 0) faulty_.ClearFaults();
      saver.Prepare(state.dict);
      saver.Finish();
      saver.Start(step + 1, state.dict);
      Overwrite(saver, state.dict);
      EXPECT_OK(saver.Finish()[0].report);
    });
    ExpectSaved(tensors, step + 1);
  }
}

TEST_F(AsyncSaverTest, ARankWithoutMemoryFailsTheSaveForAll) {
  const std::vector<WholeTensor> tensors = Tensors(4);
  RunRanks(3, [&](ProcessGroup& group) {
    LocalState state = RowsOf(tensors);
    AsyncSaveOptions options = SmallPieces();
    std::atomic<uint64_t> available = group.rank() == 2 ? 100 : 1 << 30;
    options.available_memory_bytes = [&] { return available.load(); };
    AsyncSaver saver(storage_, On(group, options));
    saver.Start(1, state.dict);
    Overwrite(saver, state.dict);
    const std::vector<SaveOutcome> outcomes = saver.Finish();
    const absl::Status& status = outcomes[0].report.status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(SaverMessage(status),
                AllOf(HasSubstr("rank 2: staging"), HasSubstr("available: 100 B"),
                      HasSubstr("staging_bytes")));
    available = 1 << 30;
    LocalState again = RowsOf(tensors);
    saver.Start(1, again.dict);
    Overwrite(saver, again.dict);
    EXPECT_OK(saver.Finish()[0].report);
  });
  ExpectSaved(tensors, 1);
  ExpectNothingHalfWritten();
}

TEST_F(AsyncSaverTest, MistakesAreOutcomes) {
  std::vector<WholeTensor> tensors = Tensors(2);
  LocalState state = RowsOf(tensors);
  AsyncSaveOptions options = SmallPieces();
  options.copy_threads = 0;
  {
    AsyncSaver saver(storage_, options);
    saver.Start(1, state.dict);
    saver.WaitUntilAllCopied();
    EXPECT_THAT(SaverMessage(saver.Finish()[0].report.status()), HasSubstr("copy_threads"));
  }
  AsyncSaver saver(storage_, SmallPieces());
  state.dict.tensors[1].name = state.dict.tensors[0].name;
  saver.Start(1, state.dict);
  saver.WaitUntilAllCopied();
  EXPECT_THAT(SaverMessage(saver.Finish()[0].report.status()),
              AllOf(HasSubstr("planning"), HasSubstr("described twice")));
  // A plan made ahead is not trusted either.
  state.dict.tensors[1].name = "a@[0:1]";
  saver.Prepare(state.dict);
  saver.Start(1, state.dict);
  EXPECT_THAT(SaverMessage(saver.Finish()[0].report.status()),
              AllOf(HasSubstr("planning"), HasSubstr("the name is reserved")));
  saver.Start(-1, {});
  EXPECT_THAT(SaverMessage(saver.Finish()[0].report.status()),
              HasSubstr("step must not be negative"));
  EXPECT_TRUE(CheckpointFolder(storage_).List()->empty());
}

TEST_F(AsyncSaverTest, BadMetadataIsFoundBeforeAnythingIsWritten) {
  const std::vector<WholeTensor> tensors = Tensors(2);
  LocalState state = RowsOf(tensors);
  std::atomic<int> created = 0;
  faulty_.BeforeEach([&](const Operation& o) {
    if (o.kind == OperationKind::kCreate || o.kind == OperationKind::kMakeDirectory) ++created;
  });
  Manifest bad;
  bad.mutable_trainer()->mutable_data()->set_epoch(-1);
  const auto expect_refused = [&](const absl::Status& status) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(SaverMessage(status), AllOf(HasSubstr("planning"), HasSubstr("epoch is -1")));
    EXPECT_EQ(created, 0);
  };
  AsyncSaver saver(faulty_, SmallPieces());
  PlanCache plan_cache;
  SingleProcessGroup alone;
  CountingGroup group(alone);
  std::vector<uint64_t> sent_bytes;
  const auto in_foreground = [&](int64_t step, const Metadata& metadata) {
    group.sent_bytes = 0;
    const auto saved = SaveNow(faulty_, {.step = step, .metadata = metadata}, state.dict,
                               On(group, SaveOptions()), {.plan_cache = &plan_cache});
    sent_bytes.push_back(group.sent_bytes);
    return saved;
  };
  saver.Prepare(state.dict);
  for (int64_t step = 1; step <= 2; ++step) {  // with a plan made ahead, and with a cached one
    saver.Start({.step = 7, .metadata = ToMetadata(bad)}, state.dict);
    saver.WaitUntilAllCopied();
    expect_refused(saver.Finish()[0].report.status());
    expect_refused(in_foreground(7, ToMetadata(bad)).status());
    saver.Start(step, state.dict);
    EXPECT_OK(saver.Finish()[0].report);
    EXPECT_OK(in_foreground(step + 100, {}));
    EXPECT_GT(created.exchange(0), 0);
  }
  EXPECT_LT(sent_bytes[3], sent_bytes[1]) << "the last save, with the plan of the one before";
  ExpectNothingHalfWritten();
}

TEST_F(AsyncSaverTest, WhatFollowsACommitHoldsNobodyUp) {
  const std::vector<WholeTensor> tensors = Tensors(4);
  LocalState state = RowsOf(tensors);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> go_on = false;
  std::vector<std::string> committed;  // by the saver's thread
  SaveHooks hooks;
  hooks.on_committed = [&](SaveReport& report) {
    EXPECT_NE(std::this_thread::get_id(), caller);
    EXPECT_EQ(CheckpointFolder(storage_).List()->back().directory, report.directory);
    committed.push_back(report.directory);
    go_on.wait(false);
    EXPECT_OK(CheckpointFolder(storage_).Prune(1));
    report.note = "pruned";
  };
  const std::unique_ptr<AsyncSaver> saver = MakeAsyncSaver(faulty_, SmallPieces(), hooks);
  saver->Start(1, state.dict);
  Overwrite(*saver, state.dict);  // returns, although on_committed() does not
  EXPECT_TRUE(saver->Poll().empty());
  go_on = true;
  go_on.notify_all();
  for (int64_t step = 2; step <= 3; ++step) saver->Start(step, state.dict);
  faulty_.FailWhere([](const Operation& o) { return o.path.find("000004") != std::string::npos; },
                    absl::UnavailableError("injected"));
  saver->Start(4, state.dict);
  const std::vector<SaveOutcome> outcomes = saver->Finish();
  ASSERT_EQ(outcomes.size(), 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outcomes[i].report->note, "pruned");
  EXPECT_FALSE(outcomes[3].report.ok());
  EXPECT_EQ(committed.size(), 3) << "once a commit, and not for what failed";
  EXPECT_EQ(CheckpointFolder(storage_).List()->size(), 1);
  EXPECT_EQ(CheckpointFolder(storage_).List()->front().step, 3) << "what failed removes nothing";
}

TEST_F(AsyncSaverTest, AGroupWithoutItsPeersEndsInAnErrorAndStaysOne) {
  const std::vector<WholeTensor> tensors = Tensors(2);
  ThreadGroupHub hub(2);
  ThreadProcessGroup alone(hub, 0);
  AsyncSaveOptions options = SmallPieces();
  options.save.timeout = absl::Milliseconds(100);
  LocalState state = RowsOf(tensors);
  AsyncSaver saver(storage_, On(alone, options));
  for (int64_t step = 1; step <= 2; ++step) {
    saver.Start(step, state.dict);
    Overwrite(saver, state.dict);
    const std::vector<SaveOutcome> outcomes = saver.Finish();
    const absl::Status& status = outcomes[0].report.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(SaverMessage(status), HasSubstr("missing ranks: 1"));
  }
  saver.Start(3, state.dict);  // destroyed while in flight
}

TEST_F(AsyncSaverTest, ATimelineHasTheBytesOfCopiesAndWrites) {
  const LocalState state = RowsOf(Tensors(3));
  SaveOptions options = SmallPieces().save;
  options.staging_bytes = 4096;
  const auto recorder = std::make_shared<TraceRecorder>();
  recorder->Start();
  const TraceThread traced(recorder, "saver");
  ASSERT_OK_AND_ASSIGN(const SaveReport report,
                       SaveNow(storage_, {.step = 1}, state.dict, options));
  recorder->Stop();
  const std::string json = recorder->Json(0, 0);
  constexpr std::string_view kKey = R"("bytes":)";
  uint64_t bytes = 0;
  for (size_t at = 0; (at = json.find(kKey, at)) != json.npos; at += kKey.size()) {
    bytes += std::stoull(json.substr(at + kKey.size()));
  }
  EXPECT_EQ(bytes, 2 * report.bytes_written) << "all is copied and written";
  EXPECT_THAT(json, HasSubstr(R"("args":{"step":1})"));
}

TEST_F(AsyncSaverTest, DestructionWaitsForTheSaveInFlight) {
  const std::vector<WholeTensor> tensors = Tensors(6);
  LocalState state = RowsOf(tensors);
  for (int64_t step = 0; step < 10; ++step) {
    AsyncSaver saver(storage_, SmallPieces());
    if (step % 2) saver.Prepare(state.dict);
    saver.Start(step, state.dict);
  }
  for (int64_t step = 0; step < 10; ++step) ExpectSaved(tensors, step);
  ExpectNothingHalfWritten();
}

}  // namespace
}  // namespace tessera::ckpt
