// Replicas that have diverged, as the user of the run sees them.

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DivergenceCommandTest : public CommandTest {
 protected:
  // Two tensor-parallel ranks; what rank 1 sends is wrong after some steps.
  Result RunOnBrokenNetwork(const Words& flags) const {
    Words command = Mpirun(2, Saving("run", 12, {"--tensor-model-parallel-size=2"}));
    command.insert(command.end(), flags.begin(), flags.end());
    // For the ranks only, not for mpirun itself.
    command.insert(command.begin() + 2,
                   {"-x", "LD_PRELOAD=" + Runfile("tests/resume/broken_network.so"), "-x",
                    "BROKEN_NETWORK_RANK=1", "-x", "BROKEN_NETWORK_FROM=300"});
    return Run(command);
  }
};

TEST_F(DivergenceCommandTest, EndsTheRunWithOneMessage) {
  const Result result = RunOnBrokenNetwork({});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr(": gradient of '"));
  EXPECT_THAT(result.err, HasSubstr("rank 0 against rank 1. Replicas have diverged"));
  EXPECT_THAT(result.err, HasSubstr("--replica-divergence=warn"));
  // The steps before were correct.
  EXPECT_THAT(result.out, HasSubstr("step 1/12 "));
  EXPECT_THAT(result.out, Not(HasSubstr("step 12/12 ")));
}

TEST_F(DivergenceCommandTest, GoesOnWhereToldToWithOneMessage) {
  const Result result = RunOnBrokenNetwork({"--replica-divergence=warn"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Lines(result.err), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 0 against rank 1. Replicas have diverged"));
  EXPECT_THAT(result.out, HasSubstr("step 12/12 "));
}

}  // namespace
}  // namespace tessera
