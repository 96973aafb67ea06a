// The library as a program without ours sees it: nothing here but //checkpoint.

#include "checkpoint/include/checkpoint.h"

#include <array>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>

#include "base/testing.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/storage.h"

// A 16-bit floating type of the program's own.
struct Brain16 {
  uint16_t bits;
};
template <>
inline constexpr tessera::DType tessera::kDTypeOf<Brain16> = tessera::DType::kBF16;

namespace tessera::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(kDTypeOf<float> == DType::kF32);
static_assert(kDTypeOf<double> == DType::kF64);
static_assert(kDTypeOf<bool> == DType::kBool);
static_assert(kDTypeOf<int8_t> == DType::kI8);
static_assert(kDTypeOf<uint16_t> == DType::kU16);
static_assert(kDTypeOf<int64_t> == DType::kI64);
static_assert(kDTypeOf<long double> == DType::kUnspecified);
static_assert(kDTypeOf<void*> == DType::kUnspecified);

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class PublicInterfaceTest : public testing::Test {
 protected:
  PublicInterfaceTest() {
    folder_ = *CheckpointFolder::Open(root_ + "/run", {.create_root = true});
    std::iota(matrix_.begin(), matrix_.end(), 0.0f);
  }

  StateDict Matrix() {
    return {{{.name = "matrix",
              .global_shape = {4, 3},
              .shards = {Shard::Of(matrix_, WholeBox({4, 3}))}}}};
  }
  Checkpoint Saved(const Metadata& metadata = {}) {
    EXPECT_OK(folder_->Save({.step = 7, .metadata = metadata}, Matrix()));
    return *folder_->At(7);
  }

  const TestFolder own_;
  const std::string root_ = own_.path();
  std::optional<CheckpointFolder> folder_;
  std::array<float, 12> matrix_;
};

TEST_F(PublicInterfaceTest, ViewsKnowTheirTypeAndTheirSize) {
  const std::vector<int32_t> constant(6);
  const Shard shard = Shard::Of(constant, WholeBox({6}));
  EXPECT_EQ(shard.dtype, DType::kI32);
  EXPECT_EQ(shard.memory_elements, 6);
  EXPECT_TRUE(shard.read_only);
  std::vector<Brain16> own(4);
  EXPECT_EQ(Shard::Of(std::span(own), WholeBox({4})).dtype, DType::kBF16);
  EXPECT_FALSE(Shard::Of(own, WholeBox({4})).read_only);
}

TEST_F(PublicInterfaceTest, MemoryThatDoesNotFitIsRefused) {
  const auto refused = [&](const Shard& shard, const std::string& part) {
    StateDict state = {{{.name = "x", .global_shape = {4, 3}, .shards = {shard}}}};
    const absl::Status status = folder_->Save(7, state).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("tensor x"), HasSubstr(part)));
  };
  std::vector<float> small(11);
  const Box whole = WholeBox({4, 3});
  refused(Shard::Of(small, whole), "does not fit into its memory of 11 elements");
  refused(Shard::Of(matrix_, whole, {4, 1}), "does not fit into its memory of 12 elements");
  refused(Shard::Of(matrix_, whole, {-3, 1}), "does not fit");
  const int64_t far = std::numeric_limits<int64_t>::max();
  refused(Shard::Of(matrix_, whole, {far, far}), "does not fit");
  refused(Shard::Untyped(small.data(), DType::kUnspecified, whole), "no dtype");
  StateDict mixed = Matrix();
  mixed.tensors[0].dtype = DType::kF64;
  EXPECT_THAT(Message(folder_->Save(7, mixed).status()),
              HasSubstr("is F32 in memory, the tensor is F64"));
}

TEST_F(PublicInterfaceTest, ReadOnlyMemoryIsSavedAndNotLoadedInto) {
  const std::array<float, 12> constant = matrix_;
  StateDict state = Matrix();
  state.tensors[0].shards = {Shard::Of(constant, WholeBox({4, 3}))};
  ASSERT_OK(folder_->Save(7, state));
  const absl::Status status = folder_->At(7)->Load(state).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("read-only"));
}

TEST_F(PublicInterfaceTest, OneTensorByItsName) {
  const Checkpoint checkpoint = Saved();
  EXPECT_THAT(*checkpoint.LoadTensor<float>("matrix"), testing::ElementsAreArray(matrix_));
  const Box column = {.global_offset = {1, 2}, .shape = {3, 1}};
  EXPECT_THAT(*checkpoint.LoadTensor<double>("matrix", column), ElementsAre(5, 8, 11));
  EXPECT_EQ(checkpoint.LoadTensor<Brain16>("matrix", column)->at(1).bits, 0x4100);
  std::vector<float> spread(7, -1);
  ASSERT_OK(checkpoint.LoadTensor("matrix", Shard::Of(spread, column, {3, 1})));
  EXPECT_THAT(spread, ElementsAre(5, -1, -1, 8, -1, -1, 11));
  float untyped[3];
  ASSERT_OK_AND_ASSIGN(const auto info, checkpoint.Find("matrix"));
  EXPECT_EQ(ElementSize(info.dtype), sizeof(float));
  ASSERT_OK(checkpoint.LoadTensor("matrix", Shard::Untyped(untyped, info.dtype, column)));
  EXPECT_THAT(untyped, ElementsAre(5, 8, 11));
}

TEST_F(PublicInterfaceTest, OneOfManyTensorsAndItsAlias) {
  std::vector<std::vector<float>> memory(40, std::vector<float>(2));
  StateDict state;
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i] = {1.0f * i, 0.5f * i};
    state.tensors.push_back({.name = "t" + std::to_string(i),
                             .global_shape = {2},
                             .shards = {Shard::Of(memory[i], WholeBox({2}))}});
  }
  state.tensors.push_back(
      {.name = "a", .dtype = DType::kF32, .global_shape = {2}, .alias_of = "t9"});
  ASSERT_OK(folder_->Save(7, state, {.max_file_bytes = 64}));  // several files
  const Checkpoint checkpoint = *folder_->At(7);
  EXPECT_GT(checkpoint.manifest().files_size(), 3);
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(*checkpoint.LoadTensor<float>("t" + std::to_string(i)), memory[i]);
  }
  EXPECT_EQ(*checkpoint.LoadTensor<float>("a"), memory[9]);
}

TEST_F(PublicInterfaceTest, ATensorThatCannotBeLoadedIsNamed) {
  const Checkpoint checkpoint = Saved();
  const auto wrong = [&](const absl::Status& status, absl::StatusCode code,
                         const std::string& part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(Message(status), HasSubstr(part));
  };
  wrong(checkpoint.LoadTensor<float>("bias").status(), absl::StatusCode::kNotFound, "bias");
  wrong(checkpoint.LoadTensor<int32_t>("matrix").status(), absl::StatusCode::kFailedPrecondition,
        "saved as F32, wanted as I32");
  for (const Box& box : {Box{{0, 0}, {5, 3}}, Box{{0, 0}, {4, -3}}, Box{{0}, {4}}}) {
    wrong(checkpoint.LoadTensor<float>("matrix", box).status(), absl::StatusCode::kInvalidArgument,
          "tensor matrix");
  }
  wrong(folder_->At(8).status(), absl::StatusCode::kNotFound, "step-00000007");
}

TEST_F(PublicInterfaceTest, ACheckpointTellsWhatIsInIt) {
  const std::string bytes("\0\1\2", 3);
  const Checkpoint checkpoint = Saved({.program = "mine 1.2", .entries = {{"cursor", bytes}}});
  EXPECT_EQ(checkpoint.step(), 7);
  EXPECT_EQ(checkpoint.directory(), "step-00000007");
  EXPECT_EQ(checkpoint.metadata().program, "mine 1.2");
  EXPECT_EQ(checkpoint.metadata().entries.at("cursor"), bytes);
  const std::vector<TensorInfo> tensors = checkpoint.tensors();
  ASSERT_EQ(tensors.size(), 1);
  EXPECT_EQ(tensors[0].name, "matrix");
  EXPECT_EQ(tensors[0].role, TensorRole::kWeight);
  EXPECT_EQ(tensors[0].dtype, DType::kF32);
  EXPECT_THAT(tensors[0].global_shape, ElementsAre(4, 3));
}

TEST_F(PublicInterfaceTest, TheLatestIsTheNewestCommittedOne) {
  EXPECT_TRUE(absl::IsNotFound(folder_->Latest().status()));
  for (const int64_t step : {2, 11, 5}) ASSERT_OK(folder_->Save(step, Matrix()));
  ASSERT_TRUE(std::filesystem::create_directory(root_ + "/run/step-00000012"));
  ASSERT_OK_AND_ASSIGN(const auto latest, folder_->FindLatest());
  EXPECT_EQ(latest.checkpoint.step, 11);
  EXPECT_EQ(latest.checkpoint.directory, "step-00000011");
  EXPECT_EQ(folder_->Latest()->step(), 11);
  EXPECT_EQ(folder_->ListAll()->uncommitted.at(0).directory, "step-00000012");
  ASSERT_OK(folder_->Prune(1));
  EXPECT_EQ(folder_->List()->size(), 1);
}

TEST_F(PublicInterfaceTest, TheLatestIsOfARunThatHadNotDiverged) {
  Manifest diverged;
  diverged.mutable_trainer()->mutable_health()->set_loss_is_sane(true);
  ASSERT_OK(folder_->Save({.step = 3, .metadata = ToMetadata(diverged)}, Matrix()));
  ASSERT_OK_AND_ASSIGN(const auto only, folder_->FindLatest());
  EXPECT_EQ(only.checkpoint.step, 3);
  EXPECT_THAT(only.notes,
              ElementsAre(HasSubstr("holds only checkpoints of a run that had diverged")));
  ASSERT_OK(folder_->Save(2, Matrix()));
  ASSERT_OK_AND_ASSIGN(const auto healthy, folder_->FindLatest());
  EXPECT_EQ(folder_->At(healthy.checkpoint)->step(), 2);
  EXPECT_EQ(folder_->Latest()->step(), 2);
  EXPECT_THAT(healthy.notes, ElementsAre(AllOf(HasSubstr("step-00000003"),
                                               HasSubstr("the run had diverged at step 3"))));
  ASSERT_OK(folder_->Save(4, Matrix()));
  ASSERT_OK_AND_ASSIGN(const auto newest, folder_->FindLatest());
  EXPECT_EQ(newest.checkpoint.step, 4);
  EXPECT_THAT(newest.notes, ElementsAre());
  EXPECT_EQ(folder_->At(3)->step(), 3);
}

TEST_F(PublicInterfaceTest, AnAsynchronousSaveNeedsNoGroup) {
  AsyncSaver saver(folder_->storage());
  saver.Start({.step = 3, .metadata = {.entries = {{"note", "in the background"}}}}, Matrix());
  saver.WaitUntilCopied(matrix_.data(), sizeof(matrix_));
  matrix_.fill(-1);
  const std::vector<SaveOutcome> outcomes = saver.Finish();
  ASSERT_EQ(outcomes.size(), 1);
  ASSERT_OK(outcomes[0].report);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, folder_->At(3));
  EXPECT_EQ(checkpoint.metadata().entries.at("note"), "in the background");
  EXPECT_EQ(checkpoint.LoadTensor<float>("matrix")->back(), 11);
  EXPECT_TRUE(checkpoint.Verify({.digests = true})->damage.empty());
}

TEST_F(PublicInterfaceTest, ADamagedManifestIsFoundByTheFolder) {
  const std::string directory = Saved().directory();
  std::filesystem::resize_file(root_ + "/run/" + directory + "/manifest.pb", 40);
  EXPECT_TRUE(absl::IsDataLoss(folder_->Latest().status()));
  ASSERT_OK_AND_ASSIGN(const auto verified,
                       folder_->Verify(folder_->FindLatest()->checkpoint.directory));
  EXPECT_EQ(verified.damage.size(), 1);
}

// A folder over a storage of the program's own, which outlives it, or which it shares.
TEST_F(PublicInterfaceTest, FoldersOverAStorage) {
  const Checkpoint saved = Saved();
  EXPECT_EQ(CheckpointFolder(folder_->storage()).Latest()->step(), 7);
  ASSERT_OK_AND_ASSIGN(const auto opened, Checkpoint::Open(saved.storage(), saved.directory()));
  EXPECT_EQ(opened.step(), 7);
}

}  // namespace
}  // namespace tessera::ckpt
