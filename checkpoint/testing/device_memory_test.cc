// State in the memory of a device is saved and loaded as state in host memory is, bit for bit.
// Copies overlap with the rest. No fault of the device leaves a checkpoint or page-locked memory.

#include "checkpoint/include/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <latch>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/testing/simulated_device.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/elements/copy_elements.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Call = SimulatedDevice::Call;

constexpr DType kDeviceDTypes[] = {DType::kF64, DType::kF32,    DType::kF16,   DType::kBF16,
                                   DType::kI64, DType::kI32,    DType::kI16,   DType::kI8,
                                   DType::kU8,  DType::kBool,   DType::kU16,   DType::kU32,
                                   DType::kU64, DType::kF8E4M3, DType::kF8E5M2};

std::string DeviceMessage(const absl::Status& status) { return std::string(status.message()); }

// The saved tensors, and the data files by their index, without what differs from save to save.
std::string Contents(Storage& storage, const std::string& directory) {
  absl::StatusOr<Manifest> manifest = ReadManifest(storage, directory);
  if (!manifest.ok()) return DeviceMessage(manifest.status());
  std::string contents;
  for (DataFile& file : *manifest->mutable_files()) {
    const auto read = storage.Read(JoinPath(directory, file.path()), uint64_t{1} << 30);
    EXPECT_OK(read);
    if (read.ok()) contents += read->contents;
    file.clear_path();
  }
  manifest->clear_producer();
  return contents + manifest->SerializeAsString();
}

class DeviceMemoryTest : public testing::Test {
 protected:
  DeviceMemoryTest() : seed_(TestSeed()), random_(seed_) {
    options_.save.checksum_chunk_bytes = 4096;
    options_.save.max_file_bytes = 16 << 10;  // each is a piece
    options_.save.timeout = absl::Seconds(20);
  }
  void TearDown() override {
    EXPECT_THAT(device_.problems(), IsEmpty());
    EXPECT_EQ(device_.allocated_bytes(), 0) << "page-locked memory is left";
    EXPECT_EQ(device_.Count(Call::kRelease), Started());
  }

  size_t Started() const {
    const auto log = device_.log();
    return std::ranges::count_if(log, [](const SimulatedDevice::Event& event) {
      return event.call == Call::kStart && event.started;
    });
  }

  // `count` tensors of 64 KiB.
  std::vector<WholeTensor> Tensors(int count) {
    std::vector<WholeTensor> tensors;
    for (int t = 0; t < count; ++t) {
      tensors.push_back(RandomTensor(absl::StrCat("t", t), TensorRole::kWeight, DType::kF32,
                                     {128, 128}, random_));
    }
    return tensors;
  }

  // Loads into host memory.
  void ExpectSaved(const std::vector<WholeTensor>& tensors, int64_t step) {
    LocalState loaded = RowsOf(tensors, 0, 1, /*fill=*/false);
    ASSERT_OK(LoadCheckpoint(storage_, StepDirectoryName(step), loaded.dict));
    ExpectHeld(tensors, loaded.dict);
  }

  static void ExpectHeld(const std::vector<WholeTensor>& tensors, const StateDict& state) {
    for (size_t t = 0; t < state.tensors.size(); ++t) {
      for (const Shard& shard : state.tensors[t].shards) {
        EXPECT_TRUE(LocalState::Holds(shard, tensors[t])) << tensors[t].name;
      }
    }
  }

  MemoryStorage storage_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  AsyncSaveOptions options_;
  SimulatedDevice device_;
};

// Random tensors of every dtype, in random boxes and strides, dealt to some ranks, part of them on
// the device.
TEST_F(DeviceMemoryTest, SavesTheFilesThatHostMemoryDoes) {
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    const int ranks = 1 + random_() % 3;
    const bool in_background = random_() % 2 == 0, mixed = random_() % 2 == 0;
    std::vector<LocalState> on_host(ranks), on_device(ranks);
    for (int t = 0; t < 8; ++t) {
      Shape shape;
      for (int rank = random_() % 4; rank > 0; --rank) shape.push_back(1 + random_() % 40);
      const WholeTensor tensor =
          RandomTensor(absl::StrCat("tensor.", t), static_cast<TensorRole>(1 + t % 4),
                       kDeviceDTypes[random_() % std::size(kDeviceDTypes)], shape, random_);
      std::vector<std::vector<Box>> boxes(ranks);
      for (const Box& box : RandomCut(shape, 1 + random_() % 4, random_)) {
        boxes[random_() % ranks].push_back(box);
      }
      for (int r = 0; r < ranks; ++r) {
        on_host[r].Add(tensor, boxes[r], /*fill=*/true);
        on_device[r].Add(tensor, boxes[r], /*fill=*/true, &random_);
        for (Shard& shard : on_device[r].dict.tensors.back().shards) {
          if (!mixed || random_() % 2 == 0) device_.Take(shard, tensor.dtype);
        }
      }
    }
    options_.save.checksum_chunk_bytes = 8 << (random_() % 10);
    options_.save.max_file_bytes = 1 << (10 + random_() % 10);
    options_.save.io_threads = 1 + random_() % 3;
    options_.save.staging_bytes = 1 << (random_() % 18);
    const auto save = [&](const std::vector<LocalState>& states, bool background) {
      MemoryStorage storage;
      RunRanks(ranks, [&](ProcessGroup& group) {
        const StateDict& state = states[group.rank()].dict;
        if (!background) {
          ASSERT_OK(CheckpointFolder(storage).Save(1, state, On(group, options_.save)));
          return;
        }
        AsyncSaver saver(storage, On(group, options_));
        saver.Start(1, state);
        if (group.rank() % 2 == 0) saver.WaitUntilAllCopied();
        for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
      });
      return Contents(storage, StepDirectoryName(1));
    };
    EXPECT_TRUE(save(on_device, in_background) == save(on_host, false));
  }
}

TEST_F(DeviceMemoryTest, AWaitEndsWhenTheCopiesAreStarted) {
  const std::vector<WholeTensor> tensors = Tensors(8);
  for (const bool mixed : {false, true}) {
    LocalState state = RowsOf(tensors);
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!mixed || t % 2 == 0) device_.Take(state.dict.tensors[t].shards[0], DType::kF32);
    }
    std::latch gate(1);
    device_.BeforeWait([&gate] { gate.wait(); });
    AsyncSaver saver(storage_, options_);
    saver.Start(mixed ? 2 : 1, state.dict);
    // Would not return if it waited for a copy.
    for (const ShardedTensor& tensor : state.dict.tensors) {
      saver.WaitUntilCopied(tensor.shards[0].data, 64 << 10);
      if (tensor.shards[0].device == nullptr) std::memset(tensor.shards[0].data, 0xEE, 64 << 10);
    }
    device_.StartToFill(std::byte{0xEE});
    gate.count_down();
    for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
    ExpectSaved(tensors, mixed ? 2 : 1);
  }
  EXPECT_GE(device_.most_in_flight(), 8);
}

TEST_F(DeviceMemoryTest, ASaverKeepsItsPageLockedMemory) {
  const std::vector<WholeTensor> tensors = Tensors(4);
  LocalState state = RowsOf(tensors), other = RowsOf(tensors);
  device_.Take(state.dict);
  AsyncSaver saver(storage_, options_);
  saver.Prepare(state.dict);
  for (int64_t step = 1; step <= 3; ++step) {
    saver.Start(step, state.dict);
    for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
    EXPECT_EQ(device_.Count(Call::kAllocate), 1);
    ExpectSaved(tensors, step);
  }
  saver.Start(4, other.dict);
  for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
  EXPECT_EQ(device_.allocated_bytes(), 0) << "a state in host memory needs none";
  saver.Start(5, state.dict);
  for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
  EXPECT_EQ(device_.Count(Call::kAllocate), 2);
  ExpectSaved(tensors, 5);
}

TEST_F(DeviceMemoryTest, ASaveInTheForegroundCopiesAheadWithinItsMemory) {
  const std::vector<WholeTensor> tensors = Tensors(8);
  LocalState state = RowsOf(tensors);
  device_.Take(state.dict);
  options_.save.io_threads = 1;
  for (const uint64_t limit : {uint64_t{1}, uint64_t{8} << 10, uint64_t{100} << 10}) {
    options_.save.staging_bytes = limit;
    CheckpointFolder folder(storage_);
    ASSERT_OK_AND_ASSIGN(const SaveReport report,
                         folder.Save(static_cast<int64_t>(limit), state.dict, options_.save));
    EXPECT_EQ(report.note, "");
    EXPECT_LE(device_.most_allocated_bytes(), std::max<uint64_t>(limit, 4096));
    ExpectSaved(tensors, static_cast<int64_t>(limit));
  }
  EXPECT_EQ(device_.most_in_flight(), 2);
}

// The device fails at each of its calls in turn, or the caller ends the save.
TEST_F(DeviceMemoryTest, ASaveThatFailsLeavesNothing) {
  const std::vector<WholeTensor> tensors = Tensors(3);
  LocalState state = RowsOf(tensors);
  device_.Take(state.dict);
  int64_t step = 0;
  for (const bool in_background : {false, true}) {
    for (const Call call : {Call::kAllocate, Call::kStart, Call::kWait}) {
      for (int64_t n = 1; n <= (call == Call::kAllocate ? 1 : 11); n += 5) {
        SCOPED_TRACE(absl::StrCat("call ", n, " of kind ", static_cast<int>(call)));
        device_.FailFrom(call, n);
        options_.save.staging_bytes = in_background ? UINT64_MAX : 16 << 10;
        AsyncSaver saver(storage_, options_);
        const absl::Status status = [&] {
          if (!in_background) {
            return CheckpointFolder(storage_).Save(++step, state.dict, options_.save).status();
          }
          saver.Start(++step, state.dict);
          saver.WaitUntilAllCopied();
          return saver.Finish().at(0).report.status();
        }();
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        EXPECT_THAT(DeviceMessage(status), AllOf(HasSubstr("staging: "), HasSubstr("off the bus")));
        EXPECT_FALSE(ReadManifest(storage_, StepDirectoryName(step)).ok());
        device_.FailFrom(call, 0);
        saver.Start(step, state.dict);
        for (const SaveOutcome& outcome : saver.Finish()) EXPECT_OK(outcome.report);
        ExpectSaved(tensors, step);
      }
    }
  }
  int calls = 0;
  options_.save.is_cancelled = [&] { return ++calls > 10; };
  EXPECT_TRUE(absl::IsCancelled(
      CheckpointFolder(storage_).Save(++step, state.dict, options_.save).status()));
}

// Returns the tensor in another dtype.
WholeTensor Converted(const WholeTensor& tensor, DType dtype) {
  WholeTensor converted = tensor;
  const int64_t count = ElementCount(tensor.shape);
  converted.dtype = dtype;
  converted.bytes.resize(count * ElementSize(dtype));
  FindCopy(tensor.dtype, dtype)(reinterpret_cast<const std::byte*>(tensor.bytes.data()),
                                reinterpret_cast<std::byte*>(converted.bytes.data()), count, 1);
  return converted;
}

// Random tensors in other boxes, strides and dtypes than they were saved in, on ranks that read for
// each other, in parts on the device; boxes of different ranks overlap.
TEST_F(DeviceMemoryTest, LoadsWhatHostMemoryWouldHold) {
  constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    std::vector<WholeTensor> saved, wanted;
    for (int t = 0; t < 8; ++t) {
      Shape shape;
      // Small enough for messages of 8 bytes, each of which takes a busy machine milliseconds.
      for (int rank = random_() % 4; rank > 0; --rank) shape.push_back(1 + random_() % 16);
      const bool is_float = random_() % 2 == 0;
      const DType dtype =
          is_float ? kFloats[random_() % 4] : kDeviceDTypes[random_() % std::size(kDeviceDTypes)];
      saved.push_back(
          RandomTensor(absl::StrCat("tensor.", t), TensorRole::kWeight, dtype, shape, random_));
      wanted.push_back(is_float ? Converted(saved.back(), kFloats[random_() % 4]) : saved.back());
    }
    MemoryStorage storage;
    options_.save.checksum_chunk_bytes = 8 << (random_() % 10);
    RunRanks(3, [&](ProcessGroup& group) {
      const LocalState state = RowsOf(saved, group.rank(), 3);
      ASSERT_OK(CheckpointFolder(storage).Save(1, state.dict, On(group, options_.save)));
    });

    const int ranks = 1 + random_() % 3;
    const bool mixed = random_() % 2 == 0;
    std::vector<LocalState> states(ranks);
    std::vector<std::pair<size_t, Shard>> memory;  // as it was before the device took it
    for (LocalState& state : states) {
      for (size_t t = 0; t < wanted.size(); ++t) {
        std::vector<Box> boxes = RandomCut(wanted[t].shape, 1 + random_() % 4, random_);
        if (random_() % 4 == 0) boxes.resize(random_() % boxes.size());
        state.Add(wanted[t], boxes, /*fill=*/false, &random_);
        for (Shard& shard : state.dict.tensors.back().shards) {
          memory.emplace_back(t, shard);
          if (!mixed || random_() % 2 == 0) device_.Take(shard, wanted[t].dtype);
        }
      }
    }
    LoadOptions options = {.verify_digests = random_() % 2 == 0, .allow_overflow = true};
    options.io_threads = 1 + random_() % 3;
    options.staging_bytes = 1 << (random_() % 18);
    RunRanks(ranks, [&](ProcessGroup& group) {
      EXPECT_OK(LoadCheckpoint(storage, StepDirectoryName(1), states[group.rank()].dict,
                               On(group, options)));
    });
    device_.ReadBack();
    for (const auto& [t, shard] : memory) {
      EXPECT_TRUE(LocalState::Holds(shard, wanted[t])) << wanted[t].name;
    }
    device_.Forget();
  }
  const auto log = device_.log();
  EXPECT_TRUE(std::ranges::any_of(log, [](const SimulatedDevice::Event& event) {
    return event.call == Call::kStart && event.direction == DeviceMemory::Direction::kToHost;
  })) << "digests of boxes that overlap are computed from what the device holds";
}

TEST_F(DeviceMemoryTest, ALoadSharesCopiesAmongSmallTensorsAndHasSeveralInFlight) {
  for (const auto& [count, shape] :
       std::vector<std::pair<int, Shape>>{{200, {30}}, {8, {512, 512}}}) {
    std::vector<WholeTensor> tensors;
    for (int t = 0; t < count; ++t) {
      tensors.push_back(
          RandomTensor(absl::StrCat("t", t), TensorRole::kWeight, DType::kF32, shape, random_));
    }
    MemoryStorage storage;
    LocalState state = RowsOf(tensors);
    ASSERT_OK(CheckpointFolder(storage).Save(1, state.dict));
    device_.Take(state.dict);
    device_.StartToFill(std::byte{0});
    const size_t started = Started(), waited = device_.Count(Call::kWait);
    // With more threads, how many copies are in flight depends on who runs when.
    ASSERT_OK(LoadCheckpoint(storage, StepDirectoryName(1), state.dict, {.io_threads = 1}));
    if (count == 200) {
      EXPECT_EQ(Started(), started + 1);
    } else {
      EXPECT_EQ(Started(), started + 2) << "8 MiB in slots of 4 MiB";
      EXPECT_EQ(device_.most_in_flight(), 2);
    }
    EXPECT_EQ(device_.Count(Call::kWait) - waited, Started() - started);
    const std::vector<Shard> shards = device_.ReadBack();
    for (int t = 0; t < count; ++t) EXPECT_TRUE(LocalState::Holds(shards[t], tensors[t]));
    device_.Forget();
  }
  EXPECT_LE(device_.most_allocated_bytes(), uint64_t{8} << 20);
}

// The device of one rank fails at each of its calls in turn: all ranks learn of it, and the next
// load works.
TEST_F(DeviceMemoryTest, ALoadThatFailsLeavesNoMemoryAndNoRankInWait) {
  const std::vector<WholeTensor> tensors = Tensors(3);
  {
    const LocalState state = RowsOf(tensors);
    ASSERT_OK(CheckpointFolder(storage_).Save(1, state.dict, options_.save));
  }
  for (const int ranks : {1, 3}) {
    std::deque<LocalState> states;  // which are not moved
    for (int r = 0; r < ranks; ++r) states.push_back(RowsOf(tensors, 0, 1, /*fill=*/false));
    device_.Take(states.back().dict);
    const auto load = [&](bool fails) {
      RunRanks(ranks, [&](ProcessGroup& group) {
        LoadOptions options = {.verify_digests = true, .io_threads = 2};
        options.timeout = absl::Seconds(20);
        options.staging_bytes = 32 << 10;
        const absl::Status status = LoadCheckpoint(storage_, StepDirectoryName(1),
                                                   states[group.rank()].dict, On(group, options))
                                        .status();
        EXPECT_EQ(status.ok(), !fails) << status;
        if (fails) EXPECT_THAT(DeviceMessage(status), HasSubstr("off the bus"));
      });
      EXPECT_EQ(device_.allocated_bytes(), 0);
    };
    for (const Call call : {Call::kAllocate, Call::kStart, Call::kWait}) {
      for (int64_t n = 1; n <= (call == Call::kAllocate ? 1 : 5); n += 2) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, call ", n, " of kind ", static_cast<int>(call)));
        device_.FailFrom(call, n);
        load(/*fails=*/true);
        device_.FailFrom(call, 0);
        load(/*fails=*/false);
      }
    }
    const std::vector<Shard> shards = device_.ReadBack();
    for (size_t t = 0; t < tensors.size(); ++t) {
      EXPECT_TRUE(LocalState::Holds(shards[t], tensors[t]));
    }
    device_.Forget();
  }
}

}  // namespace
}  // namespace tessera::ckpt
