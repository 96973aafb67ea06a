// Saves and loads of several processes from the user's point of view: any number of processes, some
// of the tensors, a slow disk.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// Steps that have the same bits on every topology, with heads, layers and micro-batches for many.
const Words kExactSteps = {"--numerics=exact", "--exact-tp-shards=2", "--num-layers=3",
                           "--micro-batch-size=1"};
const Words kTwoByTwo = {"--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2"};

using ParallelLoadTest = CommandTest;

// A job that has more or fewer processes at each start simply continues.
TEST_F(ParallelLoadTest, WhateverTheNumberOfProcesses) {
  MustTrain("undisturbed", 8, kExactSteps);
  struct Start {
    int processes;
    std::string topology;
  };
  std::string before = "single";
  int steps = 0;
  for (const Start& start : {Start{4, "dp2_zero2_tp2"}, Start{2, "zero2_tp2"},
                             Start{6, "dp2_zero2_pp3"}, Start{3, "zero2_pp3"}}) {
    SCOPED_TRACE(start.topology);
    steps += 2;
    const Words flags = Joined(kExactSteps, {"--topology=auto", "--tensor-model-parallel-size=2",
                                             "--zero-stage=2", Load("auto")});
    const Result result = MustRun(Mpirun(start.processes, Saving("auto", steps, flags)));
    if (steps > 2) {
      EXPECT_EQ(Count(result.out, "resharded from " + before + " to " + start.topology), 1)
          << result.out;
    }
    before = start.topology;
  }
  EXPECT_EQ(Losses("auto").size(), 8u);
  EXPECT_EQ(Losses("auto"), Losses("undisturbed"));
}

// What is loaded, what is omitted and the messages about it do not depend on the topology.
TEST_F(ParallelLoadTest, PoliciesAreTheSameOnEveryTopology) {
  MustTrain("base", 2, kExactSteps);
  struct Policy {
    std::string name;
    Words flags;
    std::string said;
  };
  const std::vector<Policy> policies = {
      {"missing",
       {"--num-layers=4", "--allow-missing"},
       "not saved, keeps its initial value: transformer.h.3.attn.c_attn.bias, "},
      {"unexpected",
       {"--num-layers=2", "--allow-unexpected"},
       "skipped, the model does not have it: transformer.h.2.ln_1.weight, "},
      {"no_optimizer", {"--no-load-optim"}, "s: weights\n"},
      {"finetune", {"--finetune"}, "weights alone, starting at step 0"}};
  for (const Policy& policy : policies) {
    SCOPED_TRACE(policy.name);
    const Words flags = Joined(Joined(kExactSteps, {Load("base")}), policy.flags);
    const std::string one = policy.name + "_one", four = policy.name + "_four";
    const Result alone = MustTrain(one, 4, flags);
    const Result together = MustRun(Launcher(Saving(four, 4, Joined(flags, kTwoByTwo))));
    EXPECT_EQ(Count(alone.out, policy.said), 1) << alone.out;
    EXPECT_EQ(Count(together.out, policy.said), 1) << together.out;
    EXPECT_EQ(Lines(together.err), 1) << "the launcher's line: " << together.err;
    EXPECT_GE(Losses(one).size(), 2u);
    EXPECT_EQ(Losses(four), Losses(one));
    if (policy.name == "missing") {
      for (const std::string& run : {one, four}) {
        ASSERT_OK_AND_ASSIGN(const auto saved, ckpt::Checkpoint::Open(StepDir(run, 4).string()));
        EXPECT_EQ(saved.manifest().trainer().extra().at("partial_resumes"),
                  "step 2 without tensors that were not saved");
      }
    }
    // The complete sentence: names that several ranks miss, or that no rank wants, occur once.
    for (const absl::string_view line : absl::StrSplit(alone.out, '\n')) {
      if (!absl::StrContains(line, ": transformer.")) continue;
      EXPECT_EQ(Count(together.out, std::string(line) + "\n"), 1) << together.out;
    }
  }
}

TEST_F(ParallelLoadTest, DifferencesAreRefusedOnce) {
  MustTrain("base", 2, kExactSteps);
  const Words flags = Joined(Joined(kExactSteps, kTwoByTwo), {Load("base")});
  struct Difference {
    Words flags;
    std::string message;
    int lines;  // of which one is the launcher's
  };
  for (const Difference& difference :
       {Difference{{"--num-layers=4"}, "num_layers: saved 3, wanted 4", 2},
        Difference{{"--num-layers=4", "--allow-unexpected"},
                   "36 mismatches between " + StepDir("base", 2).string(),
                   13},
        Difference{{"--num-layers=2", "--allow-missing"},
                   "transformer.h.2.ln_2.bias, transformer.h.2.mlp.c_fc.weight, "
                   "transformer.h.2.mlp.c_fc.bias, and 26 more; --allow-unexpected",
                   2},
        Difference{{"--strict-topology"}, ", which --strict-topology refuses", 2}}) {
    SCOPED_TRACE(difference.message);
    const Result result =
        MustRun(Launcher(Saving("refused", 4, Joined(flags, difference.flags))), 1);
    EXPECT_EQ(Count(result.err, difference.message), 1) << result.err;
    EXPECT_EQ(Lines(result.err), difference.lines) << result.err;
    EXPECT_THAT(result.out, Not(HasSubstr("step 3/")));
  }
}

// A disk on which a save does not finish: training continues, and nothing is committed before the
// save is complete.
TEST_F(ParallelLoadTest, SavesBehindTheTrainingOutlastASlowDisk) {
  const Words flags = Joined(
      kExactSteps, {"--data-parallel-size=2", "--zero-stage=2", "--tensor-model-parallel-size=2"});
  ASSERT_EQ(Run(Launcher(Saving("quick", 8, flags))).exit_code, 0);

  const fs::path gate = root_ / "gate";
  setenv("TESSERA_MPIRUN_FLAGS",
         ("-x LD_PRELOAD=" + Runfile("tests/resume/slow_disk.so") +
          " -x SLOW_DISK_GATE=" + gate.string())
             .c_str(),
         1);
  const Process process(Launcher(Saving("slow", 8,
                                        Joined(flags, {"--async-save", "--async-save-skip",
                                                       "--non-persistent-save-interval=0"}))),
                        root_);
  unsetenv("TESSERA_MPIRUN_FLAGS");
  // All steps but the end of the run, which waits for the save of step 2.
  EXPECT_TRUE(process.WaitUntil([&] { return RecordCount("slow") >= 8; }));
  EXPECT_TRUE(fs::exists(StepDir("slow", 2)));
  EXPECT_FALSE(fs::exists(StepDir("slow", 2) / "manifest.pb"));
  WriteFile(gate, "open");
  const Result result = process.Wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(StepDir("slow", 2) / "manifest.pb"));
  EXPECT_FALSE(fs::exists(StepDir("slow", 4) / "manifest.pb")) << "skipped";

  const Words resume = Joined(flags, {Load("slow"), "--ckpt-step=2"});
  MustRun(Launcher(Joined(resume, {"--train-iters=8", "--run-dir=" + (root_ / "slow").string()})));
  EXPECT_EQ(Losses("slow"), Losses("quick"));
}

}  // namespace
}  // namespace tessera
