// A run that changes its topology continues as if it had not. EXACT: every later loss, gradient
// norm, weight and moment to the last bit. FAST: up to rounding.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

using testing::TrainedRun;

constexpr int kShards = 4;
constexpr int64_t kSteps = 8;

struct TrainedKind {
  std::string name;
  std::string model;
  bool bf16 = false;
};

std::ostream& operator<<(std::ostream& out, const TrainedKind& kind) { return out << kind.name; }

// The topologies at step 0, and from steps 2 and 6 on.
using Chain = std::vector<std::string>;
constexpr int64_t kChainSteps[] = {2, 6, kSteps};

class ContinueTest : public ::testing::TestWithParam<std::tuple<TrainedKind, Chain>> {
 protected:
  static const TrainedKind& kind() { return std::get<0>(GetParam()); }
  static const Chain& chain() { return std::get<1>(GetParam()); }

  static TrainConfig Config(const std::string& topology, bool exact, int64_t steps) {
    const std::string tokens = ::testing::TempDir() + "/continue_tokens.bin";
    EXPECT_OK(testing::WriteTokens(tokens, testing::kVocabulary, 1500));
    // Sixteen micro-batches; the run passes the end of its first epoch.
    return OrFail(testing::MakeConfig(
        {.model = absl::StrCat(kind().model, " make_vocab_size_divisible_by: 1"),
         .tokens = tokens,
         .topology = topology,
         .exact_shards = exact ? kShards : 0,
         .bf16 = kind().bf16,
         .micro_batch_size = 1,
         .global_batch_size = 16,
         .steps = steps,
         .decay_steps = kSteps}));
  }

  // The uninterrupted run on `topology`; trained once.
  static const TrainedRun& Uninterrupted(const std::string& topology, bool exact) {
    static auto& runs = *new std::map<std::tuple<std::string, std::string, bool>, TrainedRun>;
    const auto [run, is_new] = runs.try_emplace({kind().name, topology, exact});
    if (!is_new) return run->second;
    const absl::StatusOr<TrainedRun> trained =
        testing::TrainOnThreads(Config(topology, exact, kSteps));
    EXPECT_OK(trained);
    if (trained.ok()) run->second = *trained;
    return run->second;
  }

  // The parts of the run, each under its topology, loading the checkpoint of the part before. Every
  // second part saves asynchronously.
  std::vector<TrainedRun> TrainChain(bool exact) const {
    std::vector<TrainedRun> parts;
    for (size_t i = 0; i < chain().size(); ++i) {
      TrainConfig config = Config(chain()[i], exact, kChainSteps[i]);
      // A resumed run takes the saved seed.
      if (i > 0) config.mutable_training()->set_seed(4321);
      CheckpointConfig& checkpoint = *config.mutable_checkpoint();
      if (i > 0) checkpoint.set_load(root_);
      checkpoint.set_save(root_);
      checkpoint.set_save_interval(2);
      checkpoint.set_async_save(i % 2 == 1);
      const absl::StatusOr<TrainedRun> part = testing::TrainOnThreads(config);
      EXPECT_OK(part) << chain()[i];
      if (!part.ok()) break;
      EXPECT_EQ(part->first_step, i == 0 ? 0 : kChainSteps[i - 1]);
      parts.push_back(*part);
    }
    return parts;
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
};

class ExactContinueTest : public ContinueTest {};

TEST_P(ExactContinueTest, GoesOnToTheLastBit) {
  const TrainedRun& all = Uninterrupted("single", /*exact=*/true);
  ASSERT_EQ(all.losses.size(), kSteps);
  EXPECT_LT(all.losses.back(), all.losses.front());
  const std::vector<TrainedRun> parts = TrainChain(/*exact=*/true);
  ASSERT_EQ(parts.size(), chain().size());
  for (const TrainedRun& part : parts) EXPECT_EQ(testing::FirstLossDifference(all, part), "");
  EXPECT_EQ(testing::FirstDifference(all, parts.back()), "");
}

// In fp32: bf16 rounds too coarsely to distinguish a bug from another order of sums.
class FastContinueTest : public ContinueTest {};

TEST_P(FastContinueTest, GoesOnToRounding) {
  const TrainedRun& all = Uninterrupted(chain().front(), /*exact=*/false);
  const std::vector<TrainedRun> parts = TrainChain(/*exact=*/false);
  ASSERT_EQ(parts.size(), chain().size());
  for (const TrainedRun& part : parts) EXPECT_LT(testing::LargestLossDifference(all, part), 1e-5);
  EXPECT_EQ(parts.back().progress.step, kSteps);
  EXPECT_EQ(parts.back().progress.updates, all.progress.updates);
  EXPECT_EQ(parts.back().progress.consumed_samples, all.progress.consumed_samples);
}

std::string Name(const ::testing::TestParamInfo<ContinueTest::ParamType>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_",
                      absl::StrJoin(std::get<1>(info.param), "_then_"));
}

const std::vector<Chain>& Chains() {
  static const auto& chains =
      *new std::vector<Chain>{{"dp4_zero2_tp2_pp2", "single", "dp4_zero2_tp2_pp2"},
                              {"dp4_zero2_tp2_pp2", "dp2", "dp8"},
                              {"dp4_zero2_tp2_pp2", "tp4", "pp4"},
                              {"dp4_zero2_tp2_pp2", "dp2_tp4", "tp2_pp2"},
                              {"dp4_zero2_tp2_pp2", "dp16_zero2", "dp2_zero1"},
                              // Changes of ZeRO alone, in both directions.
                              {"dp4", "dp4_zero2", "dp4_zero1"},
                              {"dp4_zero2", "dp4_zero1", "dp4"},
                              // Virtual stages, sequence parallelism.
                              {"pp2", "pp2_vpp2", "dp2_zero1_tp2_sp"},
                              {"tp2_sp", "tp2", "tp4_sp"},
                              {"single", "dp2_zero2_tp2_pp2_vpp2_sp", "single"},
                              {"pp5", "dp8_zero2", "pp3"},
                              {"dp2_zero2_tp4", "dp4_zero1_pp2", "dp16_zero1"}};
  return chains;
}

// Returns every `stride`-th chain, beginning with the one of the number `first`, with one of two
// kinds in turn; both kinds with each chain if TESSERA_EVERY_PAIR is in the environment.
std::vector<std::tuple<TrainedKind, Chain>> Pairs(const std::vector<TrainedKind>& kinds,
                                                  size_t first, size_t stride) {
  std::vector<std::tuple<TrainedKind, Chain>> pairs;
  for (size_t i = 0; i < Chains().size(); ++i) {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      const bool in_turn = i % stride == first && i / stride % kinds.size() == kind;
      if (in_turn || std::getenv("TESSERA_EVERY_PAIR") != nullptr) {
        pairs.emplace_back(kinds[kind], Chains()[i]);
      }
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(All, ExactContinueTest,
                         ::testing::ValuesIn(Pairs({{"Gpt2Fp32", testing::kGpt2, false},
                                                    {"LlamaBf16", testing::kLlama, true}},
                                                   /*first=*/0, /*stride=*/1)),
                         Name);
INSTANTIATE_TEST_SUITE_P(All, FastContinueTest,
                         ::testing::ValuesIn(Pairs({{"Gpt2", testing::kGpt2},
                                                    {"TiedLlama", testing::kTiedLlama}},
                                                   /*first=*/1, /*stride=*/3)),
                         Name);

}  // namespace
}  // namespace tessera
