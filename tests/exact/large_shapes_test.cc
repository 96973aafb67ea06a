// EXACT numerics at the shapes of GPT-2 124M (except for the vocabulary and the number of layers):
// products with several tiles, packed operands and long sums, none of which a tiny model has.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/support/training.h"

namespace tessera {
namespace {

using testing::TrainedRun;

constexpr int64_t kVocabulary = 5003;  // not a multiple of any padding
constexpr int64_t kSteps = 1;

struct Case {
  std::string name;
  std::string topology;
  bool bf16 = false;
};

std::ostream& operator<<(std::ostream& out, const Case& which) { return out << which.name; }

// Two layers where they are on two stages.
TrainedRun Train(const std::string& topology, bool bf16, int exact_shards) {
  const std::string tokens = ::testing::TempDir() + "/tokens.bin";
  EXPECT_OK(testing::WriteTokens(tokens, kVocabulary, 2000));
  return OrFail(testing::TrainOnThreads(OrFail(testing::MakeConfig(
      {.model = absl::StrCat("size: \"gpt2-124m\" vocab_size: 5003 ", "num_layers: ", bf16 ? 2 : 1),
       .tokens = tokens,
       .topology = topology,
       .exact_shards = exact_shards,
       .bf16 = bf16,
       .global_batch_size = 4,
       .seq_length = 96,
       .steps = kSteps,
       .decay_steps = 10,
       .bucket_elements = 3'000'000}))));
}

// One process, trained once.
const TrainedRun& Baseline(bool bf16) {
  static auto& runs = *new std::map<bool, TrainedRun>;
  const auto [run, is_new] = runs.try_emplace(bf16);
  if (is_new) run->second = Train("single", bf16, /*exact_shards=*/2);
  return run->second;
}

class LargeShapesTest : public ::testing::TestWithParam<Case> {};

TEST_P(LargeShapesTest, ExactIsTheSameToTheLastBit) {
  const TrainedRun run = Train(GetParam().topology, GetParam().bf16, /*exact_shards=*/2);
  ASSERT_EQ(run.losses.size(), kSteps);
  EXPECT_EQ(testing::FirstDifference(Baseline(GetParam().bf16), run), "");
}

INSTANTIATE_TEST_SUITE_P(
    All, LargeShapesTest,
    ::testing::Values(Case{"Fp32_dp2_zero2", "dp2_zero2"}, Case{"Fp32_tp2", "tp2"},
                      Case{"Bf16_dp2_zero2_tp2_pp2", "dp2_zero2_tp2_pp2", true}),
    [](const auto& info) { return info.param.name; });

// At these shapes the order of sums matters: the equality above is not trivial.
TEST(LargeShapesFastTest, HasOtherBitsOnOtherTopologies) {
  EXPECT_NE(testing::FirstDifference(Train("single", false, /*exact_shards=*/0),
                                     Train("tp2", false, /*exact_shards=*/0)),
            "");
}

}  // namespace
}  // namespace tessera
