// What a run takes from a checkpoint, and what it says about it.

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/resume/parallel_command.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ContentCommandTest : public ParallelCommandTest {
 protected:
  // One process; saves every second step to the folder of `run`.
  Result Train(const std::string& run, int steps, const std::vector<std::string>& flags) const {
    std::vector<std::string> command = {Runfile("trainer/app/train"), Config()};
    for (const std::string& flag : Saving(run, steps, flags)) command.push_back(flag);
    return Run(command);
  }
  std::string Load(const std::string& run) const { return "--load=" + Checkpoints(run).string(); }
};

TEST_F(ContentCommandTest, SettingsThatDifferAreListed) {
  ASSERT_EQ(Train("run", 2, {}).exit_code, 0);
  const Result same = Train("run", 4, {Load("run")});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out, Not(HasSubstr("settings differ")));
  const Result other = Train("run", 6, {Load("run"), "--lr=2e-3", "--clip-grad=0.5"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("these settings differ from the saved run's:\n"
                                   "             saved  now\n"
                                   "  lr         0.001  0.002\n"
                                   "  clip_grad  1      0.5\n"
                                   "the next learning rate is 0.00192; with the saved run's "
                                   "schedule it would be 0.00096"));
  EXPECT_THAT(other.out, HasSubstr("step 5/6 | loss"));
  EXPECT_THAT(other.out, HasSubstr("| lr 1.92e-03 |"));
  // The next save records the new ones.
  EXPECT_THAT(Train("run", 8, {Load("run"), "--lr=2e-3", "--clip-grad=0.5"}).out,
              Not(HasSubstr("settings differ")));
}

TEST_F(ContentCommandTest, TheScheduleIsTheRunsUnlessTheCheckpointsIsWanted) {
  ASSERT_EQ(Train("run", 2, {}).exit_code, 0);
  std::filesystem::copy(root_ / "run", root_ / "other", std::filesystem::copy_options::recursive);
  // Both without any flag and with Megatron's flag for it.
  const Result overridden =
      Train("run", 4, {Load("run"), "--lr=5e-3", "--override-opt-param-scheduler"});
  ASSERT_EQ(overridden.exit_code, 0) << overridden.err;
  EXPECT_THAT(overridden.out, HasSubstr("| lr 4.90e-03 |"));
  const Result kept = Train("other", 4,
                            {Load("other"), "--lr=5e-3", "--lr-warmup-iters=50", "--clip-grad=0.5",
                             "--use-checkpoint-opt-param-scheduler"});
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("| lr 9.80e-04 |"));
  EXPECT_THAT(kept.out, HasSubstr("clip_grad"));
  EXPECT_THAT(kept.out, Not(HasSubstr("  lr ")));
  const Result both = Train(
      "other", 6,
      {Load("other"), "--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("exclude each other"));
}

}  // namespace
}  // namespace tessera
