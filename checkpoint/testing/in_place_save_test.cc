// Saves that write the state from where it is: what they copy, and when it may be overwritten.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "checkpoint/testing/test_state.h"
#include "checkpoint/testing/watched_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kTensors = 4;  // each somewhat larger than a piece

// The parts of a save in the background, without its thread.
struct SaveParts {
  SaveParts(Storage& storage, const SaveOptions& options)
      : context{.storage = storage,
                .hooks = hooks,
                .group = group,
                .options = options,
                .copy_threads = 2,
                .plan_cache = plan_cache,
                .staging = staging} {}

  const SaveHooks hooks = {};
  SingleProcessGroup group;
  PlanCache plan_cache;
  StagingPool staging;
  const SaveContext context;
};

class InPlaceSaveTest : public testing::Test {
 protected:
  InPlaceSaveTest() {
    std::mt19937_64 random(TestSeed());
    for (int t = 0; t < kTensors; ++t) {
      tensors_.push_back(RandomTensor(absl::StrCat("t", t), TensorRole::kWeight, DType::kF32,
                                      {260, 1024}, random));
      state_.Add(tensors_.back(), {WholeBox(tensors_.back().shape)}, true);
    }
    options_.save.io_threads = 1;
  }

  std::span<std::byte> Memory(int tensor) const {
    return {static_cast<std::byte*>(state_.dict.tensors[tensor].shards[0].data),
            tensors_[tensor].bytes.size()};
  }
  // The tensor in whose memory the bytes are; -1: none, so that they are a copy.
  int TensorOf(std::span<const std::byte> bytes) const {
    for (int t = 0; t < kTensors; ++t) {
      const auto* const begin = Memory(t).data();
      if (bytes.data() >= begin && bytes.data() < begin + Memory(t).size()) return t;
    }
    return -1;
  }
  static void Overwrite(AsyncSaver& saver, std::span<std::byte> memory) {
    saver.WaitUntilCopied(memory.data(), memory.size());
    std::memset(memory.data(), 0xEE, memory.size());
  }

  // Saves in the foreground or in the background.
  void SaveAll(Storage& storage, const StateDict& state, bool waits) const {
    if (waits) {
      ASSERT_OK(CheckpointFolder(storage).Save(1, state, options_.save));
    } else {
      AsyncSaver saver(storage, options_);
      saver.Start(1, state);
      ASSERT_OK(saver.Finish()[0].report);
    }
  }

  // Expects that an update of the memory waits, for this reason, until `release` was called.
  static void ExpectToWait(AsyncSaver& saver, std::span<std::byte> memory, const char* reason,
                           const std::function<void()>& release) {
    std::atomic<bool> overwritten = false;
    std::thread update([&] {
      Overwrite(saver, memory);
      overwritten = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(overwritten) << reason;
    release();
    update.join();
  }

  void ExpectSaved() {
    ASSERT_OK_AND_ASSIGN(const auto verified, VerifyCheckpoint(storage_, StepDirectoryName(1),
                                                               {.digests = true, .io_threads = 1}));
    EXPECT_TRUE(verified.damage.empty()) << verified.damage[0].message;
    LocalState state = RowsOf(tensors_, 0, 1, /*fill=*/false);
    ASSERT_OK(LoadCheckpoint(storage_, StepDirectoryName(1), state.dict));
    for (size_t t = 0; t < tensors_.size(); ++t) {
      EXPECT_TRUE(LocalState::Holds(state.dict.tensors[t].shards[0], tensors_[t])) << t;
    }
  }

  MemoryStorage storage_;
  std::vector<WholeTensor> tensors_;
  LocalState state_;
  AsyncSaveOptions options_;
};

TEST_F(InPlaceSaveTest, CopiesOnlyWhatIsBetweenWholeBlocks) {
  for (const bool waits : {false, true}) {
    std::atomic<uint64_t> in_place = 0, copied = 0;
    WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
      (TensorOf(bytes) >= 0 ? in_place : copied) += bytes.size();
      return absl::OkStatus();
    });
    SaveAll(watched, state_.dict, waits);
    // The header, and what lies between the blocks of two tensors, or behind the last.
    EXPECT_GT(in_place, kTensors * Memory(0).size() - (6 * 64 << 10)) << waits;
    EXPECT_LT(copied, 6 * 64 << 10) << waits;
    ExpectSaved();
    ASSERT_OK(storage_.DeleteTree(StepDirectoryName(1)));
  }
}

// An update comes to the same parts of all buffers at once.
TEST_F(InPlaceSaveTest, BuffersAreWrittenSideBySideBehindTheProgram) {
  constexpr size_t kBytes = 3 << 20;
  std::vector<float> memory(3 * kBytes / sizeof(float));
  StateDict state;
  for (const size_t at : {2 * kBytes, size_t{0}}) {
    ShardedTensor& tensor = state.tensors.emplace_back();
    tensor.name = absl::StrCat("at", at);
    tensor.global_shape = {3, 256, 1024};
    tensor.shards = {Shard::Of(std::span(memory).subspan(at / sizeof(float), kBytes / 4),
                               WholeBox(tensor.global_shape))};
  }
  for (const bool waits : {false, true}) {
    std::vector<int> order;  // by one thread
    WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
      const auto at = std::as_bytes(std::span(memory));
      if (bytes.data() < at.data() || bytes.data() >= at.data() + at.size()) {
        return absl::OkStatus();
      }
      const int buffer = bytes.data() < at.data() + kBytes ? 1 : 0;
      if (order.empty() || order.back() != buffer) order.push_back(buffer);
      return absl::OkStatus();
    });
    SaveAll(watched, state, waits);
    EXPECT_GE(order.size(), waits ? 2 : 5);
    if (waits) EXPECT_THAT(order, ElementsAre(0, 1));
    ASSERT_OK(storage_.DeleteTree(StepDirectoryName(1)));
  }
}

TEST_F(InPlaceSaveTest, AnUpdateWaitsForTheWriteOfItsMemory) {
  Gate gate;
  std::atomic<int> in_flight = -1;
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    if (TensorOf(bytes) < 0) return absl::OkStatus();
    int none = -1;
    in_flight.compare_exchange_strong(none, TensorOf(bytes));
    gate.Pass();
    return absl::OkStatus();
  });
  AsyncSaver saver(watched, options_);
  saver.Start(1, state_.dict);
  gate.AwaitArrival();
  ExpectToWait(saver, Memory(in_flight).first(4096), "the memory is being written",
               [&] { gate.Open(); });
  ASSERT_OK(saver.Finish()[0].report);
  ExpectSaved();
}

// One thread of the save is stopped in its first check, after the writes of two pieces, and the
// other one in its last write: the update that waits checks what was written before.
TEST_F(InPlaceSaveTest, WhatIsWrittenIsCheckedBeforeItIsOverwritten) {
  options_.save.io_threads = 2;
  options_.copy_threads = 1;
  Gate gate;
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    if (TensorOf(bytes) == 0) ReadTrap::LetOthersBeFirst();
    if (TensorOf(bytes) != 3) return absl::OkStatus();
    gate.Pass();
    return absl::OkStatus();
  });
  AsyncSaver saver(watched, options_);
  ReadTrap trap(Memory(0));
  saver.Start(1, state_.dict);
  ASSERT_TRUE(trap.AwaitReader());
  gate.AwaitArrival();
  Overwrite(saver, Memory(2).first(512 << 10));
  gate.Open();
  ExpectToWait(saver, Memory(0), "the memory is being checked", [&] { trap.Open(); });
  ASSERT_OK(saver.Finish()[0].report);
  ExpectSaved();
}

// Two updates want the same memory, which is written: the second waits for the check of the first.
TEST_F(InPlaceSaveTest, AnUpdateWaitsForTheCheckOfItsMemory) {
  options_.save.io_threads = 2;
  options_.copy_threads = 1;
  std::atomic<uint64_t> written = 0;
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    if (TensorOf(bytes) == 0) ReadTrap::LetOthersBeFirst();
    if (TensorOf(bytes) == 2) written += bytes.size();
    return absl::OkStatus();
  });
  std::atomic<int> overwritten = 0;
  std::vector<std::thread> updates;
  {
    AsyncSaver saver(watched, options_);
    auto first = std::make_unique<ReadTrap>(Memory(0));
    saver.Start(1, state_.dict);
    ASSERT_TRUE(first->AwaitReader());
    while (written < Memory(2).size() / 2) std::this_thread::yield();
    ReadTrap second(Memory(1));
    for (int i = 0; i < 2; ++i) {
      updates.emplace_back([&] {
        saver.WaitUntilCopied(Memory(1).data(), Memory(1).size());
        if (overwritten++ == 0) std::memset(Memory(1).data(), 0xEE, Memory(1).size());
      });
    }
    EXPECT_TRUE(second.AwaitReader());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(overwritten, 0) << "the memory is being checked";
    second.Open();
    first->Open();
    for (std::thread& update : updates) update.join();
    ASSERT_OK(saver.Finish()[0].report);
  }
  ExpectSaved();
}

TEST_F(InPlaceSaveTest, WhatIsNotBeingWrittenIsCopiedForAnUpdate) {
  Gate gate;
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    if (TensorOf(bytes) < 0) return absl::OkStatus();
    gate.Pass();
    return absl::OkStatus();
  });
  AsyncSaver saver(watched, options_);
  saver.Start(1, state_.dict);
  gate.AwaitArrival();
  Overwrite(saver, Memory(2).last(512 << 10));  // returns, although the disk stands still
  EXPECT_TRUE(saver.Poll().empty());
  gate.Open();
  ASSERT_OK(saver.Finish()[0].report);
  ExpectSaved();
}

TEST_F(InPlaceSaveTest, AFailedWriteReleasesTheMemoryAndFailsTheSave) {
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    return TensorOf(bytes) == 1 ? absl::UnavailableError("injected") : absl::OkStatus();
  });
  AsyncSaver saver(watched, options_);
  saver.Start(1, state_.dict);
  for (SaveOutcome& outcome : saver.Finish()) {
    EXPECT_THAT(std::string(outcome.report.status().message()),
                AllOf(HasSubstr("writing"), HasSubstr("injected")));
  }
  for (int t = 0; t < kTensors; ++t) Overwrite(saver, Memory(t));
}

TEST_F(InPlaceSaveTest, AFailedSaveIsWaitedForWhileItsOtherWritesAreInFlight) {
  options_.save.io_threads = 2;
  std::latch arrived(1), fails(1), gate(1);
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    if (TensorOf(bytes) == 0) {
      arrived.count_down();
      gate.wait();
    } else if (TensorOf(bytes) > 0) {
      arrived.wait();
      if (!fails.try_wait()) fails.count_down();
      return absl::UnavailableError("injected");
    }
    return absl::OkStatus();
  });
  AsyncSaver saver(watched, options_);
  saver.Start(1, state_.dict);
  fails.wait();                 // before the update copies what would be written
  Overwrite(saver, Memory(2));  // returns: the save has failed
  ExpectToWait(saver, Memory(0).first(4096), "the memory is being written",
               [&] { gate.count_down(); });
  EXPECT_FALSE(saver.Finish()[0].report.ok());
}

// An update that races with the save, through memory that does not suffice for a copy of all.
TEST_F(InPlaceSaveTest, RacesWithAnUpdate) {
  int threads = 0;
  for (const uint64_t staging_bytes : {uint64_t{1} << 20, UINT64_MAX}) {
    for (const uint64_t alignment_bytes : {1, 16, 4096, 16}) {
      SCOPED_TRACE(absl::StrCat(staging_bytes, " bytes, alignment ", alignment_bytes));
      LocalState state = RowsOf(tensors_);
      WatchedStorage watched(storage_, [](auto) { return absl::OkStatus(); });
      watched.alignment_bytes = alignment_bytes;
      options_.save.io_threads = 1 + threads++ % 3;
      options_.save.staging_bytes = staging_bytes;
      AsyncSaver saver(watched, options_);
      saver.Start(1, state.dict);
      for (const int t : {2, 0, 1}) {
        const ShardedTensor& tensor = state.dict.tensors[t];
        auto* const data = static_cast<std::byte*>(tensor.shards[0].data);
        const size_t size = tensors_[t].bytes.size();
        for (size_t at = 0; at < size; at += 256 << 10) {
          Overwrite(saver, {data + at, std::min<size_t>(256 << 10, size - at)});
        }
      }
      const std::vector<SaveOutcome> outcomes = saver.Finish();
      ASSERT_OK(outcomes[0].report);
      ExpectSaved();
      ASSERT_OK(storage_.DeleteTree(StepDirectoryName(1)));
    }
  }
}

TEST_F(InPlaceSaveTest, NoMemoryIsPreparedForWhatIsNotCopied) {
  WatchedStorage watched(storage_, [](auto) { return absl::OkStatus(); });
  for (const bool in_place : {true, false}) {
    watched.alignment_bytes = in_place ? 1 : 0;
    SaveParts save(watched, options_.save);
    ASSERT_OK(PlanAhead(save.context, state_.dict));
    while (save.staging.Prefault()) {
    }
    // The last piece is too small to be written in place.
    EXPECT_EQ(save.staging.present_bytes() <= 1 << 20, in_place);
  }
}

TEST_F(InPlaceSaveTest, TheEndOfAFileAndMemoryWithGapsAreCopied) {
  std::mt19937_64 random(TestSeed());
  tensors_ = {RandomTensor("a", TensorRole::kWeight, DType::kU8, {700'000}, random)};
  state_ = LocalState();
  state_.Add(tensors_[0], {WholeBox(tensors_[0].shape)}, true);
  for (int i = 0; i < 20; ++i) {  // some of them with gaps
    tensors_.push_back(
        RandomTensor(absl::StrCat("b", i), TensorRole::kWeight, DType::kF32, {16, 16}, random));
    state_.Add(tensors_.back(), {WholeBox({16, 16})}, true, &random);
  }
  uint64_t in_place = 0;
  WatchedStorage watched(storage_, [&](std::span<const std::byte> bytes) {
    const auto* const memory = static_cast<std::byte*>(state_.dict.tensors[0].shards[0].data);
    if (bytes.data() >= memory && bytes.data() < memory + 700'000) in_place += bytes.size();
    return absl::OkStatus();
  });
  ASSERT_OK(CheckpointFolder(watched).Save(1, state_.dict));
  EXPECT_GT(in_place, 500'000);
  ExpectSaved();
}

TEST_F(InPlaceSaveTest, MemoryIsTouchedInTheBackgroundBeforeTheFirstSave) {
  constexpr int64_t kBytes = 24 << 20, kToleranceBytes = 4 << 20;
  std::vector<float> weight(kBytes / sizeof(float));
  const auto resident_bytes = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  MemoryStorage storage;
  AsyncSaver saver(storage);
  const int64_t wanted_bytes = resident_bytes() + kBytes - kToleranceBytes;
  saver.Prepare(OneTensor(weight));
  for (int i = 0; i < 3000 && resident_bytes() < wanted_bytes; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_GE(resident_bytes(), wanted_bytes);
}

TEST_F(InPlaceSaveTest, MemoryIsPreparedForWhatAnUpdateCameToFirst) {
  WatchedStorage watched(storage_, [](auto) { return absl::OkStatus(); });
  for (const bool updates : {false, true}) {
    SaveParts save(watched, options_.save);
    const auto saved = RunSave(save.context, {.step = updates ? 2 : 1}, state_.dict,
                               [&](const std::shared_ptr<DataWriter>& writer) {
                                 if (updates) writer->WaitUntilCopied(Memory(0).data(), 4096);
                               });
    ASSERT_OK(saved);
    EXPECT_GT(save.staging.present_bytes(), 0) << "what the save has touched";
    while (save.staging.Prefault()) {
    }
    EXPECT_EQ(save.staging.present_bytes() >= 3 << 20, updates);
  }
}

}  // namespace
}  // namespace tessera::ckpt
