// Weights sharded within a layer (InternEvo's isp with its axis wp, ZeRO-3, FSDP): each rank has a
// flat range of every tensor, which usually is not a box. What a run of the trainer saves, such
// ranks load, and the other way around.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "gtest/gtest.h"
#include "layout/box.h"
#include "tests/reshard/load_outcome.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

using testing::LogicalState;

// The memory of one of `ranks` ranks, each of which has an equal range of every tensor, and its
// description.
struct FlatRank {
  ckpt::StateDict state;
  std::vector<std::vector<std::byte>> memory;  // of each tensor but aliases
  int ranges_of_several_boxes = 0;

  FlatRank(const ckpt::Checkpoint& checkpoint, int rank, int ranks) {
    for (const ckpt::TensorInfo& info : checkpoint.tensors()) {
      ckpt::ShardedTensor tensor = {.name = info.name,
                                    .role = info.role,
                                    .dtype = info.dtype,
                                    .global_shape = info.global_shape,
                                    .alias_of = info.alias_of};
      if (info.alias_of.empty()) {
        const int64_t elements = ElementCount(info.global_shape);
        AddRange(elements * rank / ranks, elements * (rank + 1) / ranks, tensor);
      }
      state.tensors.push_back(std::move(tensor));
    }
  }

  void AddRange(int64_t begin, int64_t end, ckpt::ShardedTensor& tensor) {
    std::byte* at = memory.emplace_back((end - begin) * ElementSize(tensor.dtype)).data();
    for (const Box& box : FlatRangeToBoxes(WholeBox(tensor.global_shape), begin, end)) {
      tensor.shards.push_back(ckpt::Shard::Untyped(at, tensor.dtype, box));
      at += ElementCount(box.shape) * ElementSize(tensor.dtype);
    }
    ranges_of_several_boxes += tensor.shards.size() > 1 ? 1 : 0;
  }
};

// The tensors whose ranges, in the order of the ranks, are these.
LogicalState Gathered(const std::vector<std::unique_ptr<FlatRank>>& ranks) {
  LogicalState gathered;
  size_t of_rank = 0;
  for (const ckpt::ShardedTensor& tensor : ranks.front()->state.tensors) {
    if (!tensor.alias_of.empty()) continue;
    testing::LogicalTensor whole = {.dtype = tensor.dtype, .shape = tensor.global_shape};
    for (const auto& rank : ranks) {
      const std::vector<std::byte>& range = rank->memory[of_rank];
      whole.bytes.insert(whole.bytes.end(), range.begin(), range.end());
    }
    gathered[tensor.name] = std::move(whole);
    ++of_rank;
  }
  return gathered;
}

// What the trainer knows about a checkpoint besides its tensors.
ckpt::Metadata MetadataOf(const ckpt::Checkpoint& checkpoint) {
  ckpt::Manifest manifest = checkpoint.manifest();
  manifest.clear_tensors();
  manifest.clear_files();
  ckpt::Metadata metadata = checkpoint.metadata();
  metadata.manifest = std::make_shared<const ckpt::Manifest>(std::move(manifest));
  return metadata;
}

class WeightParallelTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_OK(testing::WriteTokens(root_ + "/tokens.bin", testing::kVocabulary, 500));
    ASSERT_OK_AND_ASSIGN(saved_, testing::SaveFilled(Config("dp4_zero2_tp2_pp2"), root_ + "/saved",
                                                     progress_, /*seed=*/7));
  }

  TrainConfig Config(const std::string& topology) const {
    return OrFail(testing::MakeConfig({.model = GetParam(),
                                       .tokens = root_ + "/tokens.bin",
                                       .topology = topology,
                                       .bf16 = true,
                                       .micro_batch_size = 1,
                                       .bucket_elements = 3000}));
  }

  // Loads the trainer's checkpoint by `ranks` ranks, and saves it from there to `folder`, unless
  // that is empty.
  absl::StatusOr<LogicalState> LoadByFlatRanges(int ranks, const std::string& folder) const {
    std::vector<std::unique_ptr<FlatRank>> all(ranks);
    ThreadWorld world(ranks);
    TESSERA_RETURN_IF_ERROR(world.Run([&](Communicator& rank) -> absl::Status {
      const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(&rank);
      TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder from,
                               ckpt::CheckpointFolder::Open(root_ + "/saved"));
      TESSERA_ASSIGN_OR_RETURN(const ckpt::Checkpoint checkpoint, from.Latest());
      all[rank.rank()] = std::make_unique<FlatRank>(checkpoint, rank.rank(), ranks);
      const ckpt::StateDict& state = all[rank.rank()]->state;
      TESSERA_RETURN_IF_ERROR(
          checkpoint.Load(state, {.group = &*group, .verify_digests = true}).status());
      if (folder.empty()) return absl::OkStatus();
      TESSERA_ASSIGN_OR_RETURN(const ckpt::CheckpointFolder to,
                               ckpt::CheckpointFolder::Open(folder, {.create_root = true}));
      return to
          .Save({.step = checkpoint.step(), .metadata = MetadataOf(checkpoint)}, state,
                {.group = &*group})
          .status();
    }));
    for (const auto& rank : all) {
      EXPECT_GT(rank->ranges_of_several_boxes, 0) << "a rank has boxes alone";
    }
    return Gathered(all);
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
  const Progress progress_ = {.step = 12, .updates = 12, .consumed_samples = 192, .last_loss = 3.5};
  LogicalState saved_;
};

TEST_P(WeightParallelTest, FlatRangesLoadWhatTheTrainerSaved) {
  for (const int ranks : {4, 3, 8}) {
    const absl::StatusOr<LogicalState> loaded = LoadByFlatRanges(ranks, "");
    ASSERT_OK(loaded) << ranks << " ranks";
    EXPECT_EQ(testing::FirstStateDifference(saved_, *loaded), "") << ranks << " ranks";
  }
}

TEST_P(WeightParallelTest, TheTrainerLoadsWhatFlatRangesSaved) {
  for (const int ranks : {4, 3, 8}) {
    const std::string folder = absl::StrCat(root_, "/flat", ranks);
    ASSERT_OK(LoadByFlatRanges(ranks, folder)) << ranks << " ranks";
    const auto outcomes = testing::LoadAll(Config("tp2_pp2"), {folder});
    ASSERT_OK(outcomes) << ranks << " ranks";
    EXPECT_EQ(testing::FirstStateDifference(saved_, outcomes->front().state), "") << ranks;
    EXPECT_EQ(testing::FirstProgressDifference(progress_, outcomes->front().progress), "") << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WeightParallelTest,
                         ::testing::Values(testing::kGpt2, testing::kLlama),
                         [](const auto& info) { return info.index == 0 ? "Gpt2" : "Llama3"; });

}  // namespace
}  // namespace tessera
