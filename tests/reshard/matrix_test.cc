// A topology's checkpoint, loaded under another topology, holds what was saved: weights, master
// weights and moments to the last bit, and the progress of the run. Compared with a naively
// gathered state, on both sides.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "tests/reshard/load_outcome.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

using testing::LoadOutcome;
using testing::LogicalState;
using testing::TrainedRun;

constexpr uint64_t kStagingBytes = uint64_t{64} << 20;  // LoadOptions' default

struct Kind {
  std::string name;
  std::string model;
  int max_tensor_ranks = 1;
  bool saved_bf16 = false;
  bool loaded_bf16 = false;
  bool all_layouts = false;  // or only every third
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

// The memory layout of one side of a pair, besides its topology.
struct Layout {
  std::string topology;
  int64_t bucket_elements;
  int vocabulary_multiple = 1;
};

// - Growing, shrinking, sizes that do not divide each other, uneven stages, every ZeRO stage.
// - Buckets of which some ranks own nothing.
// - A vocabulary with no padding, padded for the tensor axis, and padded so far that whole shards
//   are padding.
const std::vector<Layout>& Layouts() {
  static const auto& layouts = *new std::vector<Layout>{{"single", 5000},
                                                        {"dp2", 5000, 128},
                                                        {"dp2_zero1", 100},
                                                        {"dp3_zero1", 3000},
                                                        {"dp4_zero2", 5000},
                                                        {"dp5_zero2", 700, 16},
                                                        {"dp7_zero1", 1000},
                                                        {"tp2", 5000},
                                                        {"tp4_sp", 5000, 64},
                                                        {"tp8", 5000, 128},
                                                        {"pp2", 5000},
                                                        {"pp3", 5000},
                                                        {"pp5", 5000, 8},
                                                        {"pp2_vpp2", 5000},
                                                        {"dp2_tp2_pp2", 5000},
                                                        {"dp4_zero2_tp2_pp2", 4000},
                                                        {"dp2_zero1_tp2_sp", 5000},
                                                        {"dp3_zero2_tp2", 2000},
                                                        {"dp2_zero2_tp2_pp2_vpp2_sp", 3000},
                                                        {"dp5_zero1_pp2", 5000},
                                                        {"dp3_zero2_pp2_vpp2", 600, 3},
                                                        {"dp2_zero2_tp4", 5000}};
  return layouts;
}

class MatrixTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    ASSERT_EQ(testing::WriteTokens(root_ + "/tokens.bin", testing::kVocabulary, 3000),
              absl::OkStatus());
    for (size_t i = 0; i < Layouts().size(); ++i) {
      const Layout& layout = Layouts()[i];
      ASSERT_OK_AND_ASSIGN(const Topology topology, ParseTopology(layout.topology));
      if (topology.tensor > GetParam().max_tensor_ranks) continue;
      if (GetParam().all_layouts || i % 3 == 0) layouts_.push_back(layout);
    }
  }
  TrainConfig Config(const Layout& layout, bool bf16, int64_t seed) const {
    const Topology topology = OrFail(ParseTopology(layout.topology));
    return OrFail(testing::MakeConfig(
        {.model = absl::StrCat(GetParam().model,
                               " make_vocab_size_divisible_by: ", layout.vocabulary_multiple),
         .tokens = root_ + "/tokens.bin",
         .topology = layout.topology,
         .bf16 = bf16,
         .micro_batch_size = 1,
         .global_batch_size = int64_t{topology.data} * topology.pipeline,
         .seq_length = 16,
         .steps = 2,
         .bucket_elements = layout.bucket_elements,
         .seed = seed}));
  }

  std::string Folder(const Layout& layout) const {
    return absl::StrCat(root_, "/", layout.topology);
  }

  // Trains a little with every layout, each from weights of its own, and saves.
  void SaveEverywhere() {
    for (size_t i = 0; i < layouts_.size(); ++i) {
      TrainConfig config =
          Config(layouts_[i], GetParam().saved_bf16, /*seed=*/100 + static_cast<int64_t>(i));
      config.mutable_checkpoint()->set_save(Folder(layouts_[i]));
      config.mutable_checkpoint()->set_save_interval(config.training().train_iters());
      const absl::StatusOr<TrainedRun> run = testing::TrainOnThreads(config);
      ASSERT_OK(run) << layouts_[i].topology;
      saved_.push_back(*run);
    }
  }

  LogicalState Expected(const LogicalState& saved) const {
    if (GetParam().saved_bf16 == GetParam().loaded_bf16) return saved;
    return GetParam().loaded_bf16 ? testing::AsBf16Run(saved) : testing::AsFp32Run(saved);
  }

  void ExpectLoaded(const TrainedRun& saved, const LoadOutcome& outcome) const {
    EXPECT_EQ(testing::FirstStateDifference(Expected(saved.state), outcome.state), "");
    EXPECT_EQ(testing::FirstProgressDifference(saved.progress, outcome.progress), "");
    EXPECT_EQ(outcome.notes.empty(), GetParam().saved_bf16 == GetParam().loaded_bf16);
    // No tensors besides the ranks' own, and buffers within the limit.
    EXPECT_EQ(outcome.tensor_bytes, 0);
    EXPECT_LE(outcome.largest_buffer_bytes, kStagingBytes);
    if (!outcome.notes.empty()) return;  // read twice: as weights and as master weights
    // Each stored byte is read once, however many ranks need it.
    EXPECT_LE(outcome.bytes_read, outcome.stored_bytes);
    EXPECT_LE(outcome.bytes_read, outcome.bytes_needed);
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
  std::vector<Layout> layouts_;  // valid for the model
  std::vector<TrainedRun> saved_;
};

// Each layout is on either side of several pairs, a third of all; the seed chooses which. With
// TESSERA_EVERY_PAIR in the environment, all of them are tried.
TEST_P(MatrixTest, ATopologyLoadsWhatAnotherSaved) {
  const bool every_pair = std::getenv("TESSERA_EVERY_PAIR") != nullptr;
  const uint64_t third = TestSeed() % 3;
  ASSERT_NO_FATAL_FAILURE(SaveEverywhere());
  size_t pairs = 0;
  for (size_t to = 0; to < layouts_.size(); ++to) {
    std::vector<size_t> from;
    std::vector<std::string> folders;
    for (size_t i = 0; i < layouts_.size(); ++i) {
      if (!every_pair && (i / 3 + to) % 3 != third) continue;
      from.push_back(i);
      folders.push_back(Folder(layouts_[i]));
    }
    const absl::StatusOr<std::vector<LoadOutcome>> outcomes =
        testing::LoadAll(Config(layouts_[to], GetParam().loaded_bf16, /*seed=*/1), folders);
    ASSERT_OK(outcomes) << "into " << layouts_[to].topology;
    for (size_t i = 0; i < from.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(layouts_[from[i]].topology, " -> ", layouts_[to].topology));
      ExpectLoaded(saved_[from[i]], (*outcomes)[i]);
    }
    pairs += from.size();
  }
  std::cout << pairs << " pairs of topologies\n";
  const size_t all = layouts_.size() * layouts_.size();
  EXPECT_GE(pairs, every_pair ? all : all * 3 / 10);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, MatrixTest,
    ::testing::Values(
        Kind{.name = "Gpt2Fp32", .model = testing::kGpt2, .max_tensor_ranks = 8},
        Kind{.name = "Gpt2Bf16",
             .model = testing::kGpt2,
             .max_tensor_ranks = 8,
             .saved_bf16 = true,
             .loaded_bf16 = true,
             .all_layouts = true},
        Kind{.name = "LlamaBf16",
             .model = testing::kLlama,
             .max_tensor_ranks = 4,
             .saved_bf16 = true,
             .loaded_bf16 = true},
        Kind{.name = "TiedLlamaFp32", .model = testing::kTiedLlama, .max_tensor_ranks = 8},
        Kind{.name = "LlamaFp32ToBf16",
             .model = testing::kLlama,
             .max_tensor_ranks = 4,
             .loaded_bf16 = true},
        Kind{.name = "Gpt2Bf16ToFp32",
             .model = testing::kGpt2,
             .max_tensor_ranks = 8,
             .saved_bf16 = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
