// A load never makes an infinity of a number unasked, wherever the conversion takes place.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/testing.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/testing/simulated_device.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/dtype.h"
#include "layout/elements/copy_elements.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 60, kColumns = 70;

WholeTensor TensorOf(DType dtype, const std::vector<double>& values) {
  WholeTensor tensor{"w", TensorRole::kWeight, dtype, {kRows, kColumns}, {}};
  tensor.bytes.resize(values.size() * ElementSize(dtype));
  FindCopy(DType::kF64, dtype)(reinterpret_cast<const std::byte*>(values.data()),
                               reinterpret_cast<std::byte*>(tensor.bytes.data()), values.size(), 1);
  return tensor;
}

class OverflowLoadTest : public ::testing::Test {
 protected:
  OverflowLoadTest() : values_(kRows * kColumns) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<double>(i % 97) - 40;
    values_[5] = INFINITY;
    values_[6] = -INFINITY;
    values_[7] = NAN;
  }

  // Saves the values as one shard for each of three ranks.
  void Save(DType dtype) {
    ++step_;
    const WholeTensor saved = TensorOf(dtype, values_);
    RunRanks(3, [&](ProcessGroup& group) {
      const LocalState state = RowsOf({saved}, group.rank(), 3);
      ASSERT_OK(CheckpointFolder(storage_).Save(
          step_, state.dict, On(group, SaveOptions{.checksum_chunk_bytes = 512})));
    });
  }

  // Loads the columns that each of `ranks` ranks wants, so that ranks read for each other, into
  // memory of the host or of a device. Returns the error, without the name of the rank.
  std::string Load(DType dtype, int ranks, bool on_device, LoadOptions options = {}) {
    const WholeTensor wanted = TensorOf(dtype, values_);
    std::string error;
    RunRanks(ranks, [&](ProcessGroup& group) {
      LocalState state;
      SimulatedDevice device;
      const int64_t width = kColumns / ranks;
      const Box box = {{0, group.rank() * width}, {kRows, width}};
      state.Add(wanted, {box}, /*fill=*/false);
      const std::vector<Shard> memory = state.dict.tensors[0].shards;
      if (on_device) device.Take(state.dict);
      options.timeout = absl::Seconds(20);
      const absl::Status status =
          LoadCheckpoint(storage_, StepDirectoryName(step_), state.dict, On(group, options))
              .status();
      if (group.rank() == 0) error = std::string(status.message());
      EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
      if (!status.ok()) return;
      if (on_device) device.ReadBack();
      EXPECT_TRUE(LocalState::Holds(memory[0], wanted));
    });
    return error;
  }

  MemoryStorage storage_;
  int64_t step_ = 0;
  std::vector<double> values_;
};

TEST_F(OverflowLoadTest, NamesTensorElementAndValueOnEveryPath) {
  values_[31 * kColumns + 2] = -70144;
  for (const DType saved : {DType::kF64, DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(DTypeName(saved));
    Save(saved);
    for (const int ranks : {1, 2}) {
      for (const bool on_device : {false, true}) {
        SCOPED_TRACE(std::to_string(ranks) + (on_device ? " ranks, device" : " ranks, host"));
        EXPECT_THAT(Load(DType::kF16, ranks, on_device),
                    HasSubstr("tensor w: element [31,2] is -70144, which F16 cannot hold; "
                              "allow_overflow makes"));
        EXPECT_EQ(Load(DType::kF16, ranks, on_device, {.allow_overflow = true}), "");
        EXPECT_EQ(Load(DType::kF32, ranks, on_device), "");
        EXPECT_EQ(Load(DType::kBF16, ranks, on_device), "");
      }
    }
  }
}

TEST_F(OverflowLoadTest, InfinitiesAndNanThatWereSavedPass) {
  Save(DType::kF32);
  EXPECT_EQ(Load(DType::kF16, 2, /*on_device=*/false), "");
  EXPECT_EQ(Load(DType::kF16, 2, /*on_device=*/true), "");
}

TEST_F(OverflowLoadTest, EveryNarrowerRangeIsChecked) {
  values_.back() = 1e39;
  Save(DType::kF64);
  for (const DType narrow : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_THAT(Load(narrow, 1, false), HasSubstr("element [59,69] is 1e+39")) << DTypeName(narrow);
  }
}

TEST_F(OverflowLoadTest, ATensorReadAloneIsChecked) {
  values_[3] = 65520;
  Save(DType::kF32);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(storage_, StepDirectoryName(step_)));
  std::vector<uint16_t> memory(3);
  const Shard shard = Shard::Untyped(memory.data(), DType::kF16, {{0, 1}, {1, 3}});
  EXPECT_THAT(std::string(checkpoint.LoadTensor("w", shard).message()),
              HasSubstr("tensor w: element [0,3] is 65520"));
  ASSERT_OK(checkpoint.LoadTensor("w", shard, {.allow_overflow = true}));
  EXPECT_EQ(memory[2], 0x7c00);
}

}  // namespace
}  // namespace tessera::ckpt
