// From sixteen ranks to twenty-four and back, neither of which is a multiple of the other, with
// ZeRO 2: what some save, the others load, to the last bit. Compared with a naively gathered state.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "compute/parallel/topology.h"
#include "gtest/gtest.h"
#include "tests/exact/logical_state.h"
#include "tests/exact/training.h"
#include "tests/reshard/load_outcome.h"
#include "tests/reshard/models.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_state.h"

namespace tessera {
namespace {

using testing::LoadOutcome;
using testing::LogicalState;

// Five layers, which divide evenly into neither two nor four chunks, and buckets that divide evenly
// among neither number of owners.
const std::vector<std::string> kSixteen = {"dp16_zero2", "dp4_zero2_tp2_pp2", "dp2_zero2_tp8",
                                           "dp4_zero2_pp2_vpp2_tp2"};
const std::vector<std::string> kTwentyFour = {"dp24_zero2", "dp6_zero2_tp2_pp2",
                                              "dp3_zero2_tp2_pp4", "dp3_zero2_tp8"};

class ManyRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(::testing::TempDir(), "/",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    const absl::Status written =
        testing::WriteTokens(root_ + "/tokens.bin", testing::kVocabulary, 3000);
    ASSERT_TRUE(written.ok()) << written;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  TrainConfig Config(const std::string& topology) const {
    const absl::StatusOr<Topology> sizes = ParseTopology(topology);
    EXPECT_TRUE(sizes.ok()) << sizes.status();
    const absl::StatusOr<TrainConfig> config =
        testing::MakeConfig({.model = testing::kGpt2,
                             .tokens = root_ + "/tokens.bin",
                             .topology = topology,
                             .bf16 = true,
                             .micro_batch_size = 1,
                             .global_batch_size = int64_t{sizes->data} * sizes->pipeline,
                             .seq_length = 16,
                             .bucket_elements = 3000});
    EXPECT_TRUE(config.ok()) << topology << ": " << config.status();
    return config.ok() ? *config : TrainConfig();
  }

  void ExpectMoves(const std::vector<std::string>& from, const std::vector<std::string>& to) {
    std::vector<std::string> folders;
    std::vector<LogicalState> saved;
    for (size_t i = 0; i < from.size(); ++i) {
      folders.push_back(absl::StrCat(root_, "/", from[i]));
      const absl::StatusOr<LogicalState> state = testing::SaveFilled(
          Config(from[i]), folders.back(), kProgress, /*seed=*/100 + static_cast<uint64_t>(i));
      ASSERT_TRUE(state.ok()) << from[i] << ": " << state.status();
      saved.push_back(*state);
    }
    for (const std::string& topology : to) {
      const absl::StatusOr<std::vector<LoadOutcome>> outcomes =
          testing::LoadAll(Config(topology), folders);
      ASSERT_TRUE(outcomes.ok()) << "into " << topology << ": " << outcomes.status();
      for (size_t i = 0; i < from.size(); ++i) {
        SCOPED_TRACE(absl::StrCat(from[i], " -> ", topology));
        const LoadOutcome& outcome = (*outcomes)[i];
        EXPECT_EQ(testing::FirstStateDifference(saved[i], outcome.state), "");
        EXPECT_EQ(testing::FirstProgressDifference(kProgress, outcome.progress), "");
        EXPECT_LE(outcome.bytes_read, outcome.stored_bytes) << "a stored byte is read once";
        EXPECT_EQ(outcome.tensor_bytes, 0) << "no rank holds more than its own";
      }
    }
  }

  const Progress kProgress = {.step = 100,
                              .updates = 99,
                              .consumed_samples = 12345,
                              .last_loss = 3.5,
                              .last_learning_rate = 1e-4,
                              .best_loss = 3.25,
                              .seed = 7,
                              .data_seed = 8};

  std::string root_;
};

TEST_F(ManyRanksTest, SixteenToTwentyFour) { ExpectMoves(kSixteen, kTwentyFour); }

TEST_F(ManyRanksTest, TwentyFourToSixteen) { ExpectMoves(kTwentyFour, kSixteen); }

}  // namespace
}  // namespace tessera
