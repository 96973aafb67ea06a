// An architecture of a program's own trains, saves, resumes and is resharded, and nothing outside
// this package knows of it.

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "base/testing.h"
#include "gtest/gtest.h"
#include "models/registry.h"
#include "tests/support/training.h"
#include "tests/third_architecture/positionless.h"
#include "tools/ckpt/commands.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

using testing::TrainedRun;

constexpr char kModel[] = R"pb(
  architecture: OTHER
  other_architecture: "positionless"
  num_layers: 5
  hidden_size: 32
  num_attention_heads: 8
  max_position_embeddings: 64
  vocab_size: 211
  hidden_dropout: 0.1
)pb";
constexpr int64_t kSteps = 9;

class ThirdArchitectureTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { RegisterArchitecture(testing::kPositionless); }

  // A run to step `steps`, from the newest checkpoint in `load` where that is not empty, which
  // saves to `save` every three steps where that is not empty.
  TrainedRun Train(const std::string& topology, int64_t steps, const std::string& load,
                   const std::string& save) {
    const std::string tokens = root_ + "/tokens.bin";
    EXPECT_OK(testing::WriteTokens(tokens, 211, 3000));
    TrainConfig config = OrFail(testing::MakeConfig({.model = kModel,
                                                     .tokens = tokens,
                                                     .topology = topology,
                                                     .exact_shards = 4,
                                                     .micro_batch_size = 1,
                                                     .global_batch_size = 8,
                                                     .steps = steps,
                                                     .decay_steps = kSteps}));
    if (!load.empty()) config.mutable_checkpoint()->set_load(load);
    if (!save.empty()) {
      config.mutable_checkpoint()->set_save(save);
      config.mutable_checkpoint()->set_save_interval(3);
    }
    return OrFail(testing::TrainOnThreads(config));
  }

  std::string Ckpt(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    EXPECT_EQ(ckpt::RunCkpt(arguments, {out, err, nullptr}), ckpt::kExitOk) << err.str();
    return out.str();
  }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
};

TEST_F(ThirdArchitectureTest, TrainsSavesResumesAndIsResharded) {
  const TrainedRun all = Train("single", kSteps, "", "");
  ASSERT_EQ(all.losses.size(), kSteps);
  EXPECT_LT(all.losses.back(), all.losses.front());

  const std::string saved = root_ + "/saved", resharded = root_ + "/resharded";
  const TrainedRun first = Train("dp2_zero2_tp2_pp2", 3, "", saved);
  EXPECT_EQ(testing::FirstLossDifference(all, first), "");
  const TrainedRun second = Train("tp4_pp2", 6, saved, saved);
  EXPECT_EQ(second.first_step, 3);
  EXPECT_EQ(testing::FirstLossDifference(all, second), "");

  const std::string report = Ckpt({"reshard", saved, resharded, "--topology=dp4_zero1_pp2_vpp2"});
  EXPECT_EQ(report.find("do not say"), std::string::npos) << report;
  Ckpt({"diff", saved, resharded, "--data"});
  Ckpt({"verify", resharded, "--digests"});
  EXPECT_NE(Ckpt({"inspect", resharded}).find("positionless"), std::string::npos);
  const TrainedRun third = Train("dp4_zero1_pp2_vpp2", kSteps, resharded, "");
  EXPECT_EQ(third.first_step, 6);
  EXPECT_EQ(testing::FirstLossDifference(all, third), "");
  EXPECT_EQ(testing::FirstDifference(all, third), "");
}

}  // namespace
}  // namespace tessera
