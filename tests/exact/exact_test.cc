// EXACT numerics: every loss, gradient norm and every bit of weights and optimizer state is the
// same on every topology. FAST: the same up to rounding, and the same bits whenever the same
// topology runs again.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

using testing::TrainedRun;

constexpr int kShards = 4;
constexpr int64_t kSteps = 8;

struct Kind {
  std::string name;
  std::string model;  // text format
  bool bf16 = false;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

const std::vector<Kind>& Kinds() {
  static const auto& kinds = *new std::vector<Kind>{{"Gpt2Fp32", testing::kGpt2, false},
                                                    {"Gpt2Bf16", testing::kGpt2, true},
                                                    {"LlamaFp32", testing::kLlama, false},
                                                    {"LlamaBf16", testing::kLlama, true},
                                                    {"TiedLlamaFp32", testing::kTiedLlama, false}};
  return kinds;
}

// A global batch of `micro_batches` micro-batches of two sequences.
TrainConfig Config(const Kind& kind, const std::string& topology, bool exact,
                   int64_t micro_batches) {
  const std::string tokens = ::testing::TempDir() + "/tokens.bin";
  EXPECT_OK(testing::WriteTokens(tokens, testing::kVocabulary, 6000));
  return OrFail(testing::MakeConfig({.model = kind.model,
                                     .tokens = tokens,
                                     .topology = topology,
                                     .exact_shards = exact ? kShards : 0,
                                     .bf16 = kind.bf16,
                                     .global_batch_size = 2 * micro_batches,
                                     .steps = kSteps,
                                     .decay_steps = kSteps}));
}

TrainedRun Train(const Kind& kind, const std::string& topology, bool exact, int64_t micro_batches) {
  return OrFail(testing::TrainOnThreads(Config(kind, topology, exact, micro_batches)));
}

// The run on one process with which others are compared; trained once.
const TrainedRun& Baseline(const Kind& kind, bool exact, int64_t micro_batches) {
  static auto& runs = *new std::map<std::tuple<std::string, bool, int64_t>, TrainedRun>;
  const auto [run, is_new] = runs.try_emplace({kind.name, exact, micro_batches});
  if (is_new) run->second = Train(kind, "single", exact, micro_batches);
  return run->second;
}

struct Case {
  std::string topology;
  int64_t micro_batches;
};

std::ostream& operator<<(std::ostream& out, const Case& which) { return out << which.topology; }

class TopologyTest : public ::testing::TestWithParam<std::tuple<Kind, Case>> {};

TEST_P(TopologyTest, ExactIsTheSameToTheLastBit) {
  const auto& [kind, which] = GetParam();
  const TrainedRun& single = Baseline(kind, /*exact=*/true, which.micro_batches);
  const TrainedRun run = Train(kind, which.topology, /*exact=*/true, which.micro_batches);
  ASSERT_EQ(single.losses.size(), kSteps);
  EXPECT_LT(single.losses.back(), single.losses.front());
  EXPECT_EQ(testing::FirstDifference(single, run), "");
}

TEST_P(TopologyTest, FastIsTheSameToRoundingAndRepeatsItself) {
  const auto& [kind, which] = GetParam();
  const TrainedRun& single = Baseline(kind, /*exact=*/false, which.micro_batches);
  const TrainedRun first = Train(kind, which.topology, /*exact=*/false, which.micro_batches);
  const TrainedRun second = Train(kind, which.topology, /*exact=*/false, which.micro_batches);
  ASSERT_EQ(first.losses.size(), kSteps);
  EXPECT_LT(testing::LargestLossDifference(single, first), kind.bf16 ? 2e-2 : 1e-5);
  EXPECT_EQ(testing::FirstDifference(first, second), "");
}

std::string Name(const ::testing::TestParamInfo<TopologyTest::ParamType>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param).topology);
}

INSTANTIATE_TEST_SUITE_P(
    All, TopologyTest,
    ::testing::Combine(::testing::ValuesIn(Kinds()),
                       ::testing::Values(Case{"dp2", 8}, Case{"dp3", 12}, Case{"dp4_zero1", 8},
                                         Case{"dp4_zero2", 8}, Case{"dp2_zero2", 6}, Case{"tp2", 8},
                                         Case{"tp4", 8}, Case{"tp2_sp", 8}, Case{"pp2", 8},
                                         Case{"pp4", 8}, Case{"pp2_vpp2", 8},
                                         Case{"dp2_tp2_pp2", 8},
                                         Case{"dp2_zero2_tp2_pp2_vpp2_sp", 8},
                                         Case{"dp4_zero2_tp2_pp2", 8})),
    Name);

}  // namespace
}  // namespace tessera
