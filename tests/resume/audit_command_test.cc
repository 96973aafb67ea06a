// Steps of a run that are executed again, and the traces of what was changed afterwards.

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/audit_run.h"
#include "tests/support/command.h"
#include "tests/support/small_disk.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class AuditCommandTest : public AuditTest {
 protected:
  void SetUp() override {
    AuditTest::SetUp();
    MustTrain("run", 6, kExact);
  }
};

TEST_F(AuditCommandTest, AnyTopologyProvesAnUndisturbedRun) {
  Result result = MustAudit({"--steps=4-6", "--data-parallel-size=2", "--zero-stage=1"});
  EXPECT_THAT(result.out, HasSubstr("the lines of 6 steps are whole, in one chain from step 1 on"));
  EXPECT_THAT(result.out,
              HasSubstr("proven: steps 4 to 6, executed again from the checkpoint of step 3, have "
                        "the bits of the ledger, and so have 3 saved states; the head of the "
                        "chain is " +
                        Records("run").back()["ledger"].get<std::string>()));
  result = MustAudit({"--random=1", "--seed=3", "--tensor-model-parallel-size=2"});
  EXPECT_THAT(result.out, HasSubstr("proven: steps "));
  result = MustAudit({"--steps=1"});
  EXPECT_THAT(result.out, HasSubstr("proven: steps 1 to 1, executed again from the beginning"));
}

TEST_F(AuditCommandTest, TheLedgerDoesNotDependOnSavesAndInterruptions) {
  MustTrain("other", 4, Joined(kExact, {"--save-interval=3", "--async-save"}));
  const Result resumed =
      MustRun(Launcher(Saving("other", 6, Joined(kExact, {"--pipeline-model-parallel-size=2"}))));
  EXPECT_THAT(resumed.out, Not(HasSubstr("ledger")));
  const std::vector<nlohmann::json> one = Records("run"), other = Records("other");
  ASSERT_EQ(one.size(), 6);
  ASSERT_EQ(other.size(), 6);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i]["ledger"], other[i]["ledger"]) << i;
  // A part of a checkpoint is not what the chain is of.
  const Result part = MustTrain(
      "part", 7, Joined(kExact, {Load("run"), "--load-content=model,scheduler,sampler,rng"}));
  EXPECT_THAT(part.out, HasSubstr("the ledger begins a new chain after step 6: "));
  MustTrain("part", 8, kExact);
  constexpr char kLeftOut[] = "the run left parts of a checkpoint out when it resumed: ";
  EXPECT_THAT(MustRun(AuditCommand(RunDir("part"), {"--steps=8"})).out,
              HasSubstr(absl::StrCat(kLeftOut, "step 6 without optimizer\n")));
  // Each is told of once, by the first checkpoint since.
  MustTrain("part", 9, Joined(kExact, {Load("part"), "--no-load-rng"}));
  const Result all = Run(AuditCommand(RunDir("part"), {"--bisect"}));
  EXPECT_THAT(all.out, HasSubstr(absl::StrCat(kLeftOut, "step 6 without optimizer\n")));
  EXPECT_THAT(all.out, HasSubstr(absl::StrCat(kLeftOut, "step 8 without rng\n")));
}

TEST_F(AuditCommandTest, AnEditedNumberIsFound) {
  Edit("metrics.jsonl", "\"skipped\":false,\"consumed_samples\":40",
       "\"skipped\":false,\"consumed_samples\":41");
  ExpectNotProven({"--steps=1"},
                  "step 5: its line in metrics.jsonl is not the one that its digest");
  // Bytes that are no UTF-8.
  Edit("metrics.jsonl", "\"step\":4", "\"st\xe5p\":4");
  ExpectNotProven({"--steps=1"}, (RunDir("run") / "metrics.jsonl").string() + ": line 4");
}

TEST_F(AuditCommandTest, AFlippedBitOfASavedWeightIsFound) {
  FlipWeight(4);
  ExpectNotProven({"--steps=5-6"}, "step 4: its checkpoint does not hold the state that");
  // Without the record of the checkpoint the steps tell.
  fs::remove(RunDir("run") / "saves.jsonl");
  ExpectNotProven({"--steps=5-6"}, "step 5: ");
  MustAudit({"--steps=3-4"});
}

TEST_F(AuditCommandTest, OtherDataAreFound) {
  WriteRandomTokens(root_ / "tokens.bin", /*vocabulary=*/99, /*count=*/20000);
  ExpectNotProven({"--steps=1-2"}, "step 1: ");
  FlipBit(root_ / "tokens.bin", 2000);
  ExpectNotProven({"--steps=3-4"}, "step 3: the replay ended before it: ");
}

TEST_F(AuditCommandTest, WhatCannotBeComparedIsRefused) {
  ExpectRefused({}, "expected the folder of a run and either --steps=40-60");
  ExpectRefused({"--bisect", "--random=1"}, "expected the folder of a run and either");
  ExpectRefused({"--steps=2", "--seed=1"}, "expected the folder of a run and either");
  ExpectRefused({"--random=0"}, "--random and --seed are numbers");
  ExpectRefused({"--steps=6-7"}, "steps 6-7: metrics.jsonl has no ledger of [7]");
  ExpectRefused({"--steps=2-3", "--no-such-flag=1"}, "no-such-flag");
  ExpectNotProven({"--steps=3-4", "--lr=2e-3"}, "step 3: settings is ");
  fs::remove_all(RunDir("run"));
  MustTrain("run", 2);
  const Result fast = MustAudit({"--steps=1-2"}, 2);
  EXPECT_THAT(fast.err, HasSubstr("FAST numerics"));
}

// A replay that cannot go on proves nothing.
TEST_F(AuditCommandTest, AReplayWithoutRoomIsNoProofOfADifference) {
  fs::remove_all(Checkpoints("run"));
  const SmallDisk disk(root_ / "disk", 2 << 20);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  const Words small = {"/usr/bin/env", "TMPDIR=" + disk.folder().string()};
  const Result result = MustRun(Joined(small, AuditCommand(RunDir("run"), {"--bisect"})), 2);
  EXPECT_THAT(result.err, HasSubstr("KiB) left"));
  EXPECT_TRUE(fs::is_empty(disk.folder()));
  fs::remove(root_ / "tokens.bin");
  ExpectRefused({"--steps=1"}, "tokens.bin");
}

// A replay begins with a checkpoint of the run, of which other things are true.
TEST_F(AuditCommandTest, WhatARunSaysOfItsFirstCheckpointIsNoHindrance) {
  const std::string weights = (root_ / "weights").string();
  MustRun({Runfile("tools/ckpt/ckpt"), "convert", StepDir("run", 2), weights, "--to=hf"});
  MustTrain("tuned", 6,
            Joined(kExact, {"--load=" + weights, "--ckpt-step=2", "--consumed-samples=16",
                            "--no-load-optim", "--strict-topology"}));
  const Words audit = AuditCommand(RunDir("tuned"), {"--steps=5-6", "--topology=dp2"});
  EXPECT_THAT(MustRun(audit).out, HasSubstr("proven: steps 5 to 6, executed again"));
}

TEST_F(AuditCommandTest, AReplayLeavesNothingInMemory) {
  const fs::path memory = root_ / "memory";
  MustTrain("run", 8,
            Joined(kExact, {"--replicate-to-peers", "--replicate-interval=1",
                            "--replicate-folder=" + memory.string()}));
  EXPECT_TRUE(fs::is_empty(memory));
  MustAudit({"--steps=7"});
  EXPECT_TRUE(fs::is_empty(memory));
}

TEST_F(AuditCommandTest, ASignalLeavesNeitherProcessesNorFilesBehind) {
  MustTrain("run", 20, Joined(kExact, {"--save-interval=20"}));
  fs::create_directories(root_ / "scratch");
  for (const int signal : {SIGINT, SIGTERM}) {
    const Process audit(Joined({"/usr/bin/env", "TMPDIR=" + (root_ / "scratch").string()},
                               AuditCommand(RunDir("run"), {"--bisect", "--topology=dp2"})),
                        root_);
    // A rank that stands still keeps the replay from its end.
    EXPECT_TRUE(audit.WaitUntil([&] {
      const pid_t rank = FindRank(1);
      return rank > 0 && kill(rank, SIGSTOP) == 0;
    })) << audit.Wait().err;
    audit.Kill(signal);
    EXPECT_EQ(audit.Wait().exit_code, 128 + signal);
    EXPECT_TRUE(fs::is_empty(root_ / "scratch"));
    EXPECT_EQ(FindRank(1), -1);
  }
}

}  // namespace
}  // namespace tessera
