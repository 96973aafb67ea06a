// Jobs on simulated machines that lose a process and a machine's memory, and restart from what the
// others hold.

#include <signal.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class ReplicasCommandTest : public CommandTest {
 protected:
  // The store has nothing before the last step.
  Words Flags(const Words& topology) const {
    return Joined({"--numerics=exact", "--exact-tp-shards=2", "--save-interval=1000",
                   "--non-persistent-save-interval=0"},
                  topology);
  }
  Words Replicating(int steps, const Words& topology) const {
    return Saving("run", steps,
                  Joined(Flags(topology), {"--replicate-to-peers", "--replicate-interval=2",
                                           "--replicate-ranks-per-node=1",
                                           "--replicate-folder=" + memory_.string()}));
  }

  // Trains on four machines until a rank is killed, some steps later than the first replica.
  void TrainUntilARankIsKilled() {
    const Process job(Launcher(Replicating(1000000, {"--data-parallel-size=2", "--zero-stage=2",
                                                     "--tensor-model-parallel-size=2"})),
                      root_);
    ASSERT_TRUE(job.WaitUntil([&] {
      return ReadFile(RunDir("run") / "events.jsonl").find("\"replicated\"") != std::string::npos;
    })) << job.Wait().err;
    ASSERT_EQ(kill(FindRank(2), SIGKILL), 0);
    const Result killed = job.Wait();
    ASSERT_NE(killed.exit_code, 0);
    EXPECT_THAT(killed.out, HasSubstr("replicas every 2 steps in the memory of 4 hosts (node0, "));
    ASSERT_TRUE(Steps("run").empty());
    steps_ = static_cast<int>(RecordCount("run")) + 10;
  }
  // Resumes on two data-parallel ranks of two stages, and trains past the last recorded step.
  Result RestartElsewhere() const {
    return MustRun(Launcher(
        Replicating(steps_, {"--data-parallel-size=2", "--pipeline-model-parallel-size=2"})));
  }
  void LoseMemoryOf(const std::string& node) {
    for (const auto& entry : fs::directory_iterator(memory_)) {
      if (entry.path().string().ends_with(node)) fs::remove_all(entry.path());
    }
  }

  const fs::path memory_ = root_ / "memory";
  int steps_ = 0;
};

TEST_F(ReplicasCommandTest, ALostMachineCostsFewStepsOnAnotherTopology) {
  TrainUntilARankIsKilled();
  LoseMemoryOf("-node1");
  const Result result = RestartElsewhere();
  EXPECT_THAT(result.out, HasSubstr(" in the memory of node0, node2, node3; the store has no "
                                    "checkpoint: "));
  MustTrain("calm", steps_, Flags({}));
  EXPECT_EQ(Losses("run"), Losses("calm"));
  int resumes = 0;
  const std::string events = ReadFile(RunDir("run") / "events.jsonl");
  for (size_t at = 0; at < events.size(); at = events.find('\n', at) + 1) {
    const nlohmann::json event =
        nlohmann::json::parse(events.substr(at, events.find('\n', at) - at));
    if (event["event"] != "resume") continue;
    ++resumes;
    EXPECT_EQ(event["tier"], "memory");
    EXPECT_GE(event["step"].get<int>(), 2);
  }
  EXPECT_EQ(resumes, 1) << events;
  // What no restart will need is gone.
  EXPECT_TRUE(fs::is_empty(memory_));
}

TEST_F(ReplicasCommandTest, ARunThatDoesNotReplicateGivesUpWhatIsInMemory) {
  TrainUntilARankIsKilled();
  MustTrain("run", 4, Flags({}));
  fs::remove_all(Checkpoints("run") / "step-00000004");
  const Result result = RestartElsewhere();
  EXPECT_THAT(result.out, Not(HasSubstr(" in the memory of node0, node1")));
  EXPECT_THAT(result.out, HasSubstr("begins at step 0"));
}

}  // namespace
}  // namespace tessera
