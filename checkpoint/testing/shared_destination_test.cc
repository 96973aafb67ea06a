// Loads into boxes that share memory: refused before anything is placed, unless the checkpoint has
// the same elements for all of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/testing/simulated_device.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr char kSharedStep[] = "step-00000001";

// Tensors "a", "b" and so on of 4 rows and 6 columns.
class SharedDestinationTest : public testing::Test {
 protected:
  static ShardedTensor At(const std::string& name, float* memory, std::vector<int64_t> strides = {},
                          const Box& box = WholeBox({4, 6})) {
    ShardedTensor tensor = {.name = name, .global_shape = {4, 6}};
    tensor.shards = {Shard::Untyped(memory, DType::kF32, box, std::move(strides))};
    return tensor;
  }
  // Saves "a" and "b", of which all elements are 1 and 2, and "c", which has those of "a".
  SharedDestinationTest() {
    std::vector<float> a(24, 1), b(24, 2), c(24, 1);
    EXPECT_OK(CheckpointFolder(storage_).Save(
        1, {{At("a", a.data()), At("b", b.data()), At("c", c.data())}}));
  }
  absl::Status Load(std::vector<ShardedTensor> tensors, LoadOptions options = {}) {
    options.allow_unexpected = true;
    return LoadCheckpoint(storage_, kSharedStep, {std::move(tensors)}, options).status();
  }
  void ExpectRefused(std::vector<ShardedTensor> tensors, const std::string& text) {
    const absl::Status status = Load(std::move(tensors), {.verify_digests = true});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(memory_, Each(0));
  }

  MemoryStorage storage_;
  std::vector<float> memory_ = std::vector<float>(200);
  float* const at_ = memory_.data() + 50;
};

TEST_F(SharedDestinationTest, DifferentTensorsInOneBufferAreRefused) {
  ExpectRefused({At("a", at_), At("b", at_)}, "shares memory with box [0:4,0:6] of tensor a");
  ExpectRefused({At("a", at_), At("b", at_ + 23)}, "tensor b: box [0:4,0:6] shares memory");
  ExpectRefused({At("a", at_), At("c", at_), At("b", at_ + 1)}, "shares memory");
  // Parts of one tensor that belong to different places.
  ShardedTensor parts = At("a", at_, {}, {{0, 0}, {2, 6}});
  parts.shards.push_back(Shard::Untyped(at_ + 11, DType::kF32, {{2, 0}, {2, 6}}));
  ExpectRefused({parts}, "tensor a: box [2:4,0:6] shares memory");
  EXPECT_OK(Load({At("a", at_), At("b", at_)}, {.allow_shared_memory = true}));
}

TEST_F(SharedDestinationTest, TiedTensorsAreLoaded) {
  EXPECT_OK(Load({At("a", at_), At("c", at_)}));
  EXPECT_THAT(std::span(at_, 24), Each(1));
  memory_.assign(memory_.size(), 0);
  ExpectRefused({At("a", memory_.data() + 100), At("c", memory_.data() + 100, {1, 4})}, "shares");
}

TEST_F(SharedDestinationTest, BoxesBesideEachOtherAreLoaded) {
  EXPECT_OK(Load({At("a", at_), At("b", at_ + 24)}));
  EXPECT_THAT(std::span(at_, 24), Each(1));
  EXPECT_THAT(std::span(at_ + 24, 24), Each(2));
}

// Rows of two tensors alternate in a fused buffer.
TEST_F(SharedDestinationTest, RowsThatInterleaveAreLoadedUnlessTheyOverlap) {
  EXPECT_OK(Load({At("a", at_, {12, 1}), At("b", at_ + 6, {12, 1})}));
  for (int row = 0; row < 4; ++row) {
    EXPECT_THAT(std::span(at_ + 12 * row, 6), Each(1));
    EXPECT_THAT(std::span(at_ + 12 * row + 6, 6), Each(2));
  }
  EXPECT_OK(Load({At("a", at_, {-2, 10}), At("b", at_ + 1, {-2, 10})}));
  memory_.assign(memory_.size(), 0);
  ExpectRefused({At("a", at_, {12, 1}), At("b", at_ + 5, {12, 1})}, "shares memory");
  ExpectRefused({At("a", at_, {12, 1}), At("b", at_ + 41, {-12, 1})}, "shares memory");
  // The first rows do not overlap.
  ExpectRefused({At("a", at_, {12, 1}), At("b", at_ + 6, {11, 1})}, "shares memory");
}

TEST_F(SharedDestinationTest, StridesThatFoldABoxOntoItselfAreRefused) {
  for (const auto& strides : std::vector<std::vector<int64_t>>{{0, 1}, {5, 1}, {6, 0}, {-1, 1}}) {
    SCOPED_TRACE(testing::PrintToString(strides));
    ExpectRefused({At("a", at_, strides)}, "tensor a: box [0:4,0:6] has several elements");
  }
  for (const auto& strides : std::vector<std::vector<int64_t>>{{1, 4}, {-6, -1}, {8, 1}, {1, -5}}) {
    SCOPED_TRACE(testing::PrintToString(strides));
    EXPECT_OK(Load({At("a", at_, strides)}));
  }
  // One row goes nowhere else, whatever its stride.
  EXPECT_OK(Load({At("a", at_, {0, 1}, {{2, 0}, {1, 6}})}));
}

// Equal bytes of files without digests, as other programs write them.
TEST_F(SharedDestinationTest, WithoutDigestsNothingTellsThatElementsAreTheSame) {
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(storage_, kSharedStep));
  manifest.mutable_tensors(2)->clear_digest();
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  const std::string path = JoinPath(kSharedStep, kManifestFileName);
  ASSERT_OK(storage_.Delete(path));
  ASSERT_OK(WriteAll(storage_, path, bytes));
  const absl::Status status = Load({At("a", at_), At("c", at_)});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("does not tell that its elements are the same (allow_shared_memory)"));
  EXPECT_THAT(std::string(Load({At("a", at_), At("b", at_)}).message()),
              HasSubstr("has other elements for it"));
  EXPECT_OK(Load({At("a", at_), At("c", at_)}, {.allow_shared_memory = true}));
}

// Buffers that the device knows by their handles, and whose addresses mean nothing.
TEST_F(SharedDestinationTest, AddressesOfADeviceAreNotCompared) {
  const auto device = std::make_shared<SimulatedDevice>();
  StateDict state = {{At("a", at_), At("b", at_ + 24)}};
  device->Take(state);
  state.tensors[1].shards[0].data = static_cast<float*>(state.tensors[0].shards[0].data) + 1;
  EXPECT_OK(Load(state.tensors));
  device->ReadBack();
  EXPECT_THAT(std::span(at_, 24), Each(1));
  EXPECT_THAT(std::span(at_ + 24, 24), Each(2));
}

}  // namespace
}  // namespace tessera::ckpt
