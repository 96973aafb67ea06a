// Random models with odd extents, random topologies, random bucket sizes and precisions: what one
// saves, the others load, compared with a naively gathered state.

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "layout/topology.h"
#include "tests/reshard/load_outcome.h"
#include "tests/support/logical_state.h"
#include "tests/support/training.h"
#include "trainer/config/config.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

using testing::LoadOutcome;
using testing::LogicalState;

constexpr int kMaxRanks = 12;
constexpr int kDestinations = 3;

class Chooser {
 public:
  explicit Chooser(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool Coin() { return Between(0, 1) == 1; }

  // A ModelConfig in text format that is valid for any padding of the vocabulary.
  std::string Model() {
    constexpr int64_t kHeads[] = {1, 2, 3, 4, 6, 8};
    const int64_t heads = kHeads[Between(0, 5)];
    const bool llama = Coin();
    std::string model = absl::StrCat(
        "size: \"", llama ? "llama3-tiny" : "gpt2-tiny", "\" num_layers: ", Between(1, 6),
        " num_attention_heads: ", heads, " hidden_size: ", heads * 2 * Between(1, 3),
        " ffn_hidden_size: ", heads * Between(1, 9), " vocab_size: ", Between(3, 90),
        " max_position_embeddings: ", Between(24, 41));
    if (llama) {
      int64_t groups = Between(1, heads);
      while (heads % groups != 0) groups = Between(1, heads);
      absl::StrAppend(&model, " num_query_groups: ", groups,
                      " untie_embeddings_and_output_weights: ", Coin() ? "true" : "false");
    }
    return model;
  }

  // A run of the model on a random topology that is valid for it.
  TrainConfig Run(const std::string& model, const std::string& tokens) {
    while (true) {
      const Topology topology{.tensor = static_cast<int>(Between(1, 8)),
                              .data = static_cast<int>(Between(1, 7)),
                              .pipeline = static_cast<int>(Between(1, 4)),
                              .virtual_pipeline = static_cast<int>(Between(1, 3)),
                              .zero_stage = static_cast<int>(Between(0, 2)),
                              .sequence_parallel = Coin()};
      const bool bf16 = Coin();
      const std::string whole_model =
          absl::StrCat(model, " make_vocab_size_divisible_by: ", Between(1, 9));
      if (topology.world_size() > kMaxRanks || !ValidateSizes(topology).ok()) continue;
      const absl::StatusOr<TrainConfig> config =
          testing::MakeConfig({.model = whole_model,
                               .tokens = tokens,
                               .topology = ToString(topology),
                               .bf16 = bf16,
                               .micro_batch_size = 1,
                               .global_batch_size = int64_t{topology.data} * topology.pipeline,
                               .bucket_elements = Between(1, 3000)});
      if (config.ok()) return *config;
    }
  }

  Progress Where() {
    const int64_t step = Between(1, 1000000);
    return {.step = step,
            .updates = step - Between(0, 1),
            .consumed_samples = Between(0, int64_t{1} << 50),
            .last_loss = static_cast<double>(Between(1, 1000)) / 7,
            .last_learning_rate = static_cast<double>(Between(1, 1000)) / 1e7,
            .best_loss = static_cast<double>(Between(1, 1000)) / 11,
            .seed = random_(),
            .data_seed = random_()};
  }

 private:
  std::mt19937_64 random_;
};

std::string Describe(const TrainConfig& config) {
  return absl::StrCat(ToString(ConfigTopology(config)),
                      config.training().bf16() ? " bf16" : " fp32", ", buckets of ",
                      config.parallel().ddp_bucket_size(), ", vocabulary in multiples of ",
                      config.model().make_vocab_size_divisible_by());
}

LogicalState Expected(const LogicalState& saved, bool saved_bf16, bool loaded_bf16) {
  if (saved_bf16 == loaded_bf16) return saved;
  return loaded_bf16 ? testing::AsBf16Run(saved) : testing::AsFp32Run(saved);
}

TEST(ReshardPropertyTest, AnyTopologyLoadsWhatAnyOtherSaved) {
  Chooser choose(TestSeed());
  const std::string root = ::testing::TempDir() + "/reshard_property";
  const int rounds = TestRounds(12);
  for (int round = 0; round < rounds; ++round) {
    std::filesystem::remove_all(root);
    std::filesystem::create_directories(root);
    ASSERT_OK(testing::WriteTokens(root + "/tokens.bin", /*vocabulary=*/3, 200));
    const std::string model = choose.Model();
    const TrainConfig from = choose.Run(model, root + "/tokens.bin");
    const Progress progress = choose.Where();
    SCOPED_TRACE(absl::StrCat("round ", round, ": ", model, "\nfrom ", Describe(from)));
    ASSERT_OK_AND_ASSIGN(const LogicalState saved,
                         testing::SaveFilled(from, root + "/saved", progress, progress.seed));
    for (int i = 0; i < kDestinations; ++i) {
      const TrainConfig to = choose.Run(model, root + "/tokens.bin");
      SCOPED_TRACE(absl::StrCat("to ", Describe(to)));
      ASSERT_OK_AND_ASSIGN(const std::vector<LoadOutcome> landed,
                           testing::LoadAll(to, {root + "/saved"}));
      const LogicalState expected = Expected(saved, from.training().bf16(), to.training().bf16());
      ASSERT_EQ(testing::FirstStateDifference(expected, landed.front().state), "");
      ASSERT_EQ(testing::FirstProgressDifference(progress, landed.front().progress), "");
    }
  }
  std::filesystem::remove_all(root);
  std::cout << rounds << " rounds\n";
}

// Neither number of ranks is a multiple of the other. Five layers divide evenly into neither two
// nor four chunks, and buckets divide evenly among neither number of owners.
TEST(ReshardPropertyTest, SixteenRanksAndTwentyFourLoadWhatTheOthersSaved) {
  const std::string root = ::testing::TempDir() + "/many_ranks";
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  ASSERT_OK(testing::WriteTokens(root + "/tokens.bin", testing::kVocabulary, 3000));
  const auto config = [&](const std::string& topology) {
    const Topology sizes = *ParseTopology(topology);
    return *testing::MakeConfig({.model = testing::kGpt2,
                                 .tokens = root + "/tokens.bin",
                                 .topology = topology,
                                 .bf16 = true,
                                 .micro_batch_size = 1,
                                 .global_batch_size = int64_t{sizes.data} * sizes.pipeline,
                                 .seq_length = 16,
                                 .bucket_elements = 3000});
  };
  const std::vector<std::string> sixteen = {"dp16_zero2", "dp4_zero2_pp2_vpp2_tp2"};
  const std::vector<std::string> twenty_four = {"dp24_zero2", "dp6_zero2_tp2_pp2"};
  const Progress progress = Chooser(1).Where();
  for (const auto& [from, to] :
       {std::pair(sixteen, twenty_four), std::pair(twenty_four, sixteen)}) {
    std::vector<std::string> folders;
    std::vector<LogicalState> saved;
    for (const std::string& topology : from) {
      folders.push_back(absl::StrCat(root, "/", topology));
      const auto state = testing::SaveFilled(config(topology), folders.back(), progress,
                                             /*seed=*/100 + folders.size());
      ASSERT_OK(state) << topology;
      saved.push_back(*state);
    }
    for (const std::string& topology : to) {
      const auto outcomes = testing::LoadAll(config(topology), folders);
      ASSERT_OK(outcomes) << "into " << topology;
      for (size_t i = 0; i < from.size(); ++i) {
        SCOPED_TRACE(absl::StrCat(from[i], " -> ", topology));
        const LoadOutcome& outcome = (*outcomes)[i];
        EXPECT_EQ(testing::FirstStateDifference(saved[i], outcome.state), "");
        EXPECT_EQ(testing::FirstProgressDifference(progress, outcome.progress), "");
        EXPECT_LE(outcome.bytes_read, outcome.stored_bytes) << "a stored byte is read once";
        EXPECT_EQ(outcome.tensor_bytes, 0) << "no rank holds more than its own";
      }
    }
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace tessera
