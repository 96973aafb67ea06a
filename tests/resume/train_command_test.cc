// The train command from the user's point of view: wrong input, damage, signals, restarts.

#include <signal.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/small_disk.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class TrainCommandTest : public CommandTest {
 protected:
  // The exit code is 2 for user errors and 1 for other failures; one line either way.
  void ExpectRefused(const Words& flags, int exit_code, const std::string& message,
                     const std::string& other = "") const {
    const Result result = MustRun(Alone(Joined({"--train-iters=3"}, flags)), exit_code);
    EXPECT_THAT(result.err, AllOf(HasSubstr(message), HasSubstr(other)));
    EXPECT_EQ(Lines(result.err), 1) << result.err;
  }
  void ExpectUndisturbed(const std::string& run, int steps) const {
    MustTrain("undisturbed", steps);
    EXPECT_EQ(Losses(run), Losses("undisturbed"));
  }
  // Returns the names of a run's events but its saves.
  std::vector<std::string> EventNames(const std::string& run) const {
    std::vector<std::string> names;
    std::ifstream file(RunDir(run) / "events.jsonl");
    for (std::string line; std::getline(file, line);) {
      const std::string name = nlohmann::json::parse(line)["event"];
      if (name != "saved") names.push_back(name);
    }
    return names;
  }
};

TEST_F(TrainCommandTest, WrongSettingsAreAnsweredByOneLineThatNamesThem) {
  ExpectRefused({"--learning-rate=1"}, 2, "--learning-rate");
  ExpectRefused({"--num-attention-heads=3"}, 2, "num_attention_heads");
  ExpectRefused({"--train-data-path=/nowhere/*.bin"}, 1, "/nowhere/*.bin");
  ExpectRefused({"--vocab-size=50"}, 1, "tokens.bin");
  ExpectRefused({"--llmc-filepath=/nowhere/model.bin"}, 1, "/nowhere/model.bin");
  const std::string no_folder = Tokens() + "/x";
  ExpectRefused({"--save-interval=1", "--save=" + no_folder}, 1, "save: cannot create the folder ");
  for (const std::string saves : {"--save-interval=1", "--save-interval=0", "--dry-run"}) {
    ExpectRefused({saves, "--save=" + Tokens()}, 2, "save: " + Tokens() + " is not a folder");
  }
  ExpectRefused({"--run-dir=" + no_folder}, 2, no_folder);
  // At the start, instead of after the training.
  ExpectRefused({"--export-llmc=/nowhere/model.bin"}, 1,
                "export_llmc: cannot open the directory of /nowhere/");
  ExpectRefused({"--export-llmc=x.bin", "--ffn-hidden-size=100"}, 2,
                "export_llmc: ffn_hidden_size");
  ExpectRefused({"--num-layers=100000000"}, 1, "weights");
}

// What the user names is used, or the run ends; a dry run decides likewise.
TEST_F(TrainCommandTest, WhatIsNamedAndNotThereEndsTheRun) {
  const auto folder = [&](const std::string& name, const Words& files) {
    fs::create_directories(root_ / name);
    for (const std::string& file : files) {
      fs::create_directories((root_ / name / file).parent_path());
      WriteFile(root_ / name / file, "x");
    }
    return (root_ / name).string();
  };
  fs::create_symlink("/nowhere/else", root_ / "link");
  const std::string not_there = "is not there; without load, a run begins at step 0";
  const std::vector<std::pair<std::string, std::string>> loads = {
      {"/nowhere", not_there},
      {(root_ / "link").string(), "is a link to /nowhere/else, which " + not_there},
      {folder("empty", {}), "holds no checkpoint: it is empty"},
      {folder("other", {"notes.txt"}), "holds no checkpoint: it holds notes.txt; without"},
      {folder("other", {}) + "/notes.txt", "is no checkpoint in a known format"},
      {folder("named", {"manifest.pb"}) + "/manifest.pb",
       "; a checkpoint is named by its folder; "},
      {folder("run_before", {"checkpoints/step-00000002/manifest.pb"}),
       "it holds checkpoints/; checkpoints are in " + (root_ / "run_before/checkpoints").string()},
      {folder("dcp", {"__0_0.distcp"}),
       "__0_0.distcp; .metadata, the index of a checkpoint of PyTorch's DCP, is missing"},
      {folder("hf", {"config.json", "model-00001-of-00002.safetensors"}),
       "model.safetensors.index.json, the index of sharded weights, is missing"},
      {folder("save", {"step-00000002/model-00000-of-00001.safetensors"}),
       "step-00000002 has no manifest.pb: a save that was not completed"}};
  for (const auto& [name, message] : loads) {
    SCOPED_TRACE(name);
    ExpectRefused({"--load=" + name}, 1, message, "load=" + name + " ");
    ExpectRefused({"--load=" + name, "--dry-run"}, 1, message);
    // The model's sizes, too, would come from there.
    ExpectRefused({"--load=" + name, "--size="}, 1, message);
  }
  for (const Words& more : std::vector<Words>{{}, {"--dry-run"}}) {
    ExpectRefused(Joined({"--load=" + folder("hf", {}), "--load-format=dcp"}, more), 1,
                  "holds no checkpoint in the format dcp");
    for (const std::string data : {"train", "valid"}) {
      ExpectRefused(Joined({"--" + data + "-data-path=/nowhere/*.bin"}, more), 1,
                    data + "_data_path: no file matches \"/nowhere/*.bin\"");
    }
    ExpectRefused(Joined({"--tokenizer-model=/nowhere/t.json"}, more), 1,
                  "tokenizer_model: cannot open /nowhere/t.json");
    ExpectRefused(Joined({"--llmc-filepath=/nowhere/m.bin"}, more), 1, "/nowhere/m.bin");
    ExpectRefused(Joined({"--save=" + folder("own", {}), "--exit-on-missing-checkpoint"}, more), 1,
                  "save: no checkpoint in " + (root_ / "own").string());
    ExpectRefused(Joined({"--save=" + folder("own", {}), "--ckpt-step=3"}, more), 1,
                  "no such checkpoint in " + (root_ / "own").string() + "; there is none");
  }
  // Its own folder, without a step, begins anew.
  MustTrain("save", 2);
}

// In one process, whatever the topology.
TEST_F(TrainCommandTest, ADryRunSaysWhatARunWouldBeAndChangesNothing) {
  const auto files = [&] {
    std::map<std::string, fs::file_time_type> found;
    if (!fs::exists(RunDir("run"))) return found;
    for (const auto& entry : fs::recursive_directory_iterator(RunDir("run"))) {
      found[entry.path().string()] = entry.last_write_time();
    }
    return found;
  };
  const auto dry_run = [&](const Words& flags) {
    const Result result = MustRun(Launcher(Saving("run", 12, Joined({"--dry-run"}, flags))));
    EXPECT_EQ(Lines(result.err), 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(dry_run({}), AllOf(HasSubstr("from step 0, with initial weights"),
                                 HasSubstr("12, each of "), HasSubstr("every 2 steps: 6 of them")));
  EXPECT_TRUE(files().empty());

  MustTrain("run", 4, {"--non-persistent-save-interval=0"});
  const auto before = files();
  // Weights and two moments; the files have headers, too.
  constexpr int64_t kStateBytes = 110592 * 3 * 4;
  EXPECT_NEAR(static_cast<double>(CheckpointBytes()) / kStateBytes, 1.02, 0.02);
  const std::string split = dry_run({"--tensor-model-parallel-size=2", "--zero-stage=2",
                                     "--pipeline-model-parallel-size=2", "--data-parallel-size=2"});
  EXPECT_THAT(split,
              AllOf(HasSubstr("8, dp2_zero2_tp2_pp2"), HasSubstr("8 of 12, each of "),
                    HasSubstr(StepDir("run", 4).string() + ", at step 4"),
                    HasSubstr(HumanBytes(kStateBytes) + " each, to " + Checkpoints("run").string()),
                    HasSubstr("every 2 steps: 4 of them")));
  // Two more are rolling. With two to keep, the older one is deleted after the next save.
  const std::string five = "; at most " + HumanBytes(5 * kStateBytes) + " at once; ";
  EXPECT_THAT(dry_run({"--save-interval=5"}),
              AllOf(HasSubstr("every 5 steps: 3 of them, and every 2 steps a rolling one"),
                    HasSubstr(five)));
  EXPECT_THAT(dry_run({"--max-checkpoint-keep=2"}), HasSubstr(five));
  const std::string very_many = std::to_string(int64_t{1} << 50);  // of bytes, more than 64 bits
  EXPECT_THAT(
      MustRun(Alone({"--dry-run", "--train-iters=" + very_many, "--save-interval=1",
                     "--save=" + Checkpoints("long").string()}))
          .out,
      AllOf(HasSubstr("every step: " + very_many + " of them"), Not(HasSubstr("; at most "))));
  EXPECT_THAT(
      dry_run({"--save-interval=5", "--save-last-step=false", "--non-persistent-save-interval=5"}),
      HasSubstr("every 5 steps: 2 of them; at most "));
  EXPECT_THAT(dry_run({"--no-save-optim"}), HasSubstr(HumanBytes(kStateBytes / 3) + " each, to "));
  EXPECT_TRUE(files() == before);

  FlipBit(StepDir("run", 4) / "manifest.pb", -1);
  const auto damaged = files();
  EXPECT_THAT(dry_run({}), AllOf(HasSubstr("WARNING: skipped"), HasSubstr("left where it is"),
                                 HasSubstr(StepDir("run", 2).string() + ", at step 2")));
  EXPECT_TRUE(files() == damaged);
  ExpectRefused({"--dry-run", "--train-data-path=/nowhere/*.bin"}, 1, "/nowhere/*.bin");
}

// A folder that is for reading only is refused before the first step, not at the first save.
TEST_F(TrainCommandTest, AFolderForReadingOnlyIsRefusedAtTheStart) {
  const SmallDisk disk(root_ / "disk", 1 << 20);
  if (!disk.is_mounted()) GTEST_SKIP() << "mounting is not permitted here (needs: mount)";
  fs::create_directories(disk.folder() / "checkpoints");
  disk.MakeReadOnly();
  const Result result = MustRun(Alone({"--train-iters=3", "--save-interval=3",
                                       "--save=" + (disk.folder() / "checkpoints").string()}),
                                1);
  EXPECT_THAT(result.err, HasSubstr("/checkpoints: Read-only file system"));
  EXPECT_THAT(result.out, Not(HasSubstr("step 1/3")));
}

// Without --auto-resume nothing is repaired; the message names the file and the way out.
TEST_F(TrainCommandTest, DamagedCheckpointIsReportedWithItsFile) {
  const Words each = {"--save-interval=1", "--auto-resume=false"};
  MustTrain("run", 2, each);
  const fs::path file = DataFile(StepDir("run", 2), "model-");
  const fs::path manifest = StepDir("run", 2) / "manifest.pb";
  const Words resume = Joined(each, {Load("run")});
  const auto expect_refused = [&](const std::string& said) {
    const Result result = MustTrain("run", 3, resume, 1);
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_THAT(result.err, HasSubstr("--ckpt-step=1 resumes"));
    EXPECT_EQ(Lines(result.err), 1) << result.err;
  };
  FlipBit(file, -1000);
  expect_refused(file.filename().string());
  fs::remove(file);
  fs::create_directory(file);
  expect_refused(file.filename().string());
  fs::rename(manifest, root_ / "manifest.pb");
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  expect_refused(manifest.string() + ": not a regular file");
  // A checkpoint without its manifest is an incomplete save.
  fs::remove(manifest);
  const Result result = MustTrain("run", 3, resume);
  EXPECT_THAT(result.out, HasSubstr("step-00000002, a save that was never completed"));
  EXPECT_THAT(result.out, HasSubstr("(step 1)"));
}

TEST_F(TrainCommandTest, SavesTheLastStepAndLoadsASingleCheckpointUnderAnyName) {
  const Words at_the_end = {"--save-interval=100", "--non-persistent-save-interval=0"};
  MustTrain("whole", 5, at_the_end);
  MustTrain("run", 3, at_the_end);
  EXPECT_THAT(Steps("run"), ElementsAre(3));
  const fs::path copy = root_ / "best so far";
  fs::copy(StepDir("run", 3), copy, fs::copy_options::recursive);
  std::map<int64_t, std::string> expected = Losses("whole");
  expected.erase(expected.begin(), expected.upper_bound(3));
  for (const fs::path& checkpoint : {StepDir("run", 3), copy}) {
    const std::string run = checkpoint == copy ? "from_copy" : "from_step";
    MustTrain(run, 5, {"--load=" + checkpoint.string()});
    EXPECT_EQ(Losses(run), expected);
  }
  ExpectRefused({"--load=" + copy.string(), "--ckpt-step=2"}, 1,
                "ckpt_step 2: " + copy.string() + " is a single checkpoint, of step 3");
}

// The same command again: what is damaged is renamed, and the run continues from what is left.
TEST_F(TrainCommandTest, ADamagedNewestCheckpointIsNoDeadEnd) {
  const fs::path newest = StepDir("run", 4);
  const Words flags = {"--save-interval=2", "--non-persistent-save-interval=3"};
  for (const int number : {1, 2}) {
    MustTrain("run", 4, flags);
    if (number == 1) FlipBit(DataFile(newest, "model-"), -1000);
    if (number == 2) fs::resize_file(newest / "manifest.pb", 0);
    const Result second = MustTrain("run", 4, flags);
    EXPECT_THAT(second.out, HasSubstr("skipped " + newest.string() + ": "));
    EXPECT_THAT(second.out, HasSubstr("rolling-0/step-00000003 (step 3)"));
    EXPECT_TRUE(fs::exists(newest.string() + (number == 1 ? ".damaged" : ".damaged-2")));
    EXPECT_EQ(Losses("run").size(), 4u);
  }
  MustTrain("run", 6);
  ExpectUndisturbed("run", 6);
  // What is said is of the checkpoint that is resumed from, after why it is that one.
  FlipBit(DataFile(StepDir("run", 6), "model-"), -1000);
  const std::string out =
      MustTrain("run", 8, {"--valid-data-path=" + (root_ / "tokens.bin").string()}).out;
  EXPECT_THAT(out, HasSubstr("nothing is evaluated: eval_interval=1000 divides no step from 6 to"));
  EXPECT_EQ(out.find("nothing is evaluated"), out.rfind("nothing is evaluated"));
  EXPECT_LT(out.find("WARNING: skipped "), out.find("loaded "));
}

// That would be the loss of everything without a word: a job that restarts itself ends instead.
TEST_F(TrainCommandTest, WhereAllAreDamagedTheRunEndsUntilItIsToldToBeginAnew) {
  MustTrain("run", 4);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(Checkpoints("run"))) {
    if (entry.path().filename() == "manifest.pb") fs::resize_file(entry.path(), 10);
  }
  const auto expect_refused = [&] {
    const Result refused = MustTrain("run", 4, {}, 1);
    EXPECT_EQ(Lines(refused.err), 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("no checkpoint in " + Checkpoints("run").string()));
    EXPECT_THAT(refused.err, HasSubstr("--resume-ignore-no-valid-checkpoint begins at step 0"));
    EXPECT_EQ(Losses("run").size(), 4u);
  };
  expect_refused();
  EXPECT_TRUE(fs::exists(StepDir("run", 4) / "manifest.pb"));
  // A run that ends before its first checkpoint does not begin anew by itself either.
  const Words anew = {"--resume-ignore-no-valid-checkpoint"};
  MustTrain("run", 0, anew);
  EXPECT_TRUE(fs::exists(StepDir("run", 4)));
  EXPECT_THAT(MustTrain("run", 4, anew).out, HasSubstr("it is now called step-00000004.damaged"));
  ExpectUndisturbed("run", 4);
  for (const char* name : {"step-00000004", "step-00000002", "rolling-0", "rolling-1"}) {
    fs::remove_all(Checkpoints("run") / name);
  }
  expect_refused();
}

TEST_F(TrainCommandTest, ExitSignalHandlerSavesAndNoStepIsLost) {
  const std::vector<std::pair<int, std::string>> cases = {
      {SIGINT, "--async-save=false"}, {SIGTERM, "--async-save"}, {SIGUSR1, "--async-save=false"}};
  for (const auto& [signal, flag] : cases) {
    const std::string run = "run" + std::to_string(signal);
    const Words flags = {"--save-interval=100000", flag};
    const Process process(Alone(Saving(run, 1000000, flags)), root_);
    EXPECT_TRUE(process.WaitUntil([&] { return RecordCount(run) >= 3; }));
    process.Kill(signal);
    const Result result = process.Wait();
    // SIGUSR1 stands for SIGINT.
    EXPECT_EQ(result.exit_code, 128 + (signal == SIGUSR1 ? SIGINT : signal)) << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped by signal"));
    EXPECT_THAT(ReadFile(RunDir(run) / "report.html"), HasSubstr("\"name\":\"" + run + "\""));
    const auto steps = static_cast<int>(Losses(run).size());
    EXPECT_THAT(Steps(run), ElementsAre(steps));
    const Result resumed = MustTrain(run, steps + 1, flags);
    EXPECT_THAT(resumed.out, HasSubstr("(step " + std::to_string(steps) + ")"));
    EXPECT_EQ(Losses(run).size(), static_cast<size_t>(steps + 1));
  }
}

// The checkpoint comes before all that the step owes: its export follows, and the next process
// evaluates it, once, as if nothing had happened.
TEST_F(TrainCommandTest, ARunThatIsStoppedSavesFirst) {
  const Words flags = {"--save-interval=100000", "--eval-interval=1",
                       "--eval-iters=1",         "--export-hf-interval=1",
                       "--async-save",           "--valid-data-path=" + Tokens(),
                       "--lr-decay-iters=100"};
  const Process process(Alone(Saving("run", 1000000, flags)), root_);
  EXPECT_TRUE(process.WaitUntil([&] { return RecordCount("run") >= 3; }));
  process.Kill(SIGTERM);
  const Result stopped = process.Wait();
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped.err;
  const nlohmann::json last = Records("run").back();
  const int step = last["step"];
  EXPECT_EQ(last["kind"], "step");
  const size_t saved = stopped.out.find("saved step " + std::to_string(step) + ":");
  const size_t exported = stopped.out.rfind("weights written to ");
  ASSERT_NE(saved, std::string::npos);
  EXPECT_LT(saved, exported);
  EXPECT_THAT(stopped.out.substr(exported),
              HasSubstr("/hf-" + StepDir("run", step).filename().string().substr(5) + "\n"));

  // The first of these ends without a checkpoint of its own, and evaluates only what is owed.
  const Result owing = MustTrain(
      "run", step + 1,
      Joined(flags, {"--save-last-step=false", "--eval-interval=" + std::to_string(step)}));
  EXPECT_THAT(owing.out, HasSubstr("eval at step " + std::to_string(step)));
  EXPECT_THAT(owing.out, Not(HasSubstr("nothing is evaluated")));
  MustTrain("run", step + 2, flags);
  MustTrain("undisturbed", step + 2, flags);
  const auto evaluations = [&](const std::string& run) {
    std::string lines;
    for (const nlohmann::json& record : Records(run)) {
      lines += record["kind"].dump() + record["step"].dump();
      if (record["kind"] != "eval") continue;
      lines += record["eval_loss_bits"].dump() + record["best"].dump() + "\n";
    }
    return lines;
  };
  EXPECT_EQ(evaluations("run"), evaluations("undisturbed"));
}

TEST_F(TrainCommandTest, WhatHappensIsRecordedOverAllProcessesOfARun) {
  const Words flags = {"--save-interval=2", "--non-persistent-save-interval=0",
                       "--async-save=false"};
  {
    const Process process(Alone(Saving("run", 1000000, flags)), root_);
    EXPECT_TRUE(process.WaitUntil([&] { return Steps("run").size() >= 2; }));
    process.Kill(SIGKILL);
    EXPECT_THAT(process.Wait().out, HasSubstr("a step takes at least "));
  }
  const auto steps = static_cast<int>(Losses("run").size());
  const auto last = static_cast<int>(*Steps("run").rbegin());
  const int before = last - 2;
  FlipBit(DataFile(StepDir("run", last), "model-"), -1000);
  const Result result = MustTrain("run", before + 1, flags);
  EXPECT_THAT(result.out, HasSubstr("goes on after step " + std::to_string(before)));
  // The speed is not measured for a few steps of a tiny model.
  EXPECT_THAT(result.out, AllOf(HasSubstr("memory: "), Not(HasSubstr("a step takes at least "))));

  std::vector<std::string> names;
  nlohmann::json resume;
  std::ifstream file(RunDir("run") / "events.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    const bool repeated = event["event"] == "saved" && names.back() == "saved";
    if (!repeated) names.push_back(event["event"]);
    if (event["event"] == "resume") resume = event;
    if (event["event"] == "saved") {
      ASSERT_EQ(event["ranks"].size(), 1);
      EXPECT_GT(event["ranks"][0]["writing"], 0);
      EXPECT_LE(event["ranks"][0]["seconds"], event["seconds"]);
    }
  }
  EXPECT_THAT(names, ElementsAre("start", "saved", "skipped_damaged", "resume", "saved", "end"));
  EXPECT_EQ(resume["step"], before);
  EXPECT_EQ(resume["lost_steps"], steps - before);
  EXPECT_GT(resume["lost_seconds"], 0);
  EXPECT_GT(resume["down_seconds"], 0);
  EXPECT_GT(resume["ranks"][0]["optimizer"], 0);
  EXPECT_GT(Records("run").back()["memory_bytes"], 0);
  EXPECT_THAT(ReadFile(RunDir("run") / "events.out.tfevents.tessera"),
              AllOf(HasSubstr("save/seconds"), HasSubstr("resume/lost_steps")));
}

TEST_F(TrainCommandTest, ExitSignalHandlerCanBeSwitchedOff) {
  const Process process(
      Alone(Saving("run", 1000000, {"--save-interval=100000", "--exit-signal-handler=false"})),
      root_);
  EXPECT_TRUE(process.WaitUntil([&] { return RecordCount("run") >= 3; }));
  process.Kill(SIGTERM);
  EXPECT_EQ(process.Wait().exit_code, 128 + SIGTERM);
  EXPECT_THAT(Steps("run"), IsEmpty());
}

// A stop file is obeyed once, also where the checkpoint of its step is damaged afterwards.
TEST_F(TrainCommandTest, StopFilePathSavesAndEndsAndIsNotObeyedTwice) {
  const fs::path stop_file = root_ / "stop";
  const Words flags = {"--save-interval=2", "--non-persistent-save-interval=0",
                       "--stop-file-path=" + stop_file.string()};
  const auto stopped = [&](int step) {
    return HasSubstr("stopped by " + stop_file.string() + " after step " + std::to_string(step));
  };
  WriteFile(stop_file, "5\n");
  EXPECT_THAT(MustTrain("run", 9, flags).out, stopped(5));
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4, 5));
  fs::resize_file(StepDir("run", 5) / "manifest.pb", 10);
  // A negative number saves, and the run continues.
  Result result = MustTrain("run", 9, flags);
  EXPECT_THAT(result.out, HasSubstr("(step 4)"));
  EXPECT_THAT(result.out, Not(HasSubstr("stopped by")));
  WriteFile(stop_file, "-11");
  MustTrain("run", 12, flags);
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4, 6, 8, 9, 10, 11, 12));
  WriteFile(stop_file, "soon");
  EXPECT_THAT(MustTrain("run", 13, flags).out,
              HasSubstr("has no effect: expected an integer, not \"soon\""));
  ExpectUndisturbed("run", 13);
}

TEST_F(TrainCommandTest, APageThatCannotBeWrittenIsAMessage) {
  fs::create_directories(RunDir("run") / "report.html" / "mine");
  EXPECT_THAT(MustTrain("run", 2).out, HasSubstr("no report: "));
  EXPECT_TRUE(fs::exists(RunDir("run") / "report.html" / "mine"));
}

TEST_F(TrainCommandTest, EnableSaveCkptFalseSavesNothingAndLoads) {
  MustTrain("run", 4);
  EXPECT_THAT(MustTrain("run", 6, {"--enable-save-ckpt=false"}).out, HasSubstr("(step 4)"));
  EXPECT_THAT(Steps("run"), ElementsAre(2, 4));
}

// The updates are so large that losses are not numbers from then on.
TEST_F(TrainCommandTest, DivergenceLeavesTheLastGoodCheckpointAndAWayBack) {
  const Words keep = {"--max-checkpoint-keep=1", "--non-persistent-save-interval=0"};
  MustTrain("run", 4, keep);
  const Words broken = Joined(keep, {"--lr=1e30", "--export-hf-interval=9"});
  // It ends before ten steps in a row have been skipped.
  Result result = MustTrain("run", 9, broken, 1);
  EXPECT_THAT(result.err, HasSubstr("training has diverged: the loss of step 9 is nan"));
  EXPECT_THAT(Steps("run"), ElementsAre(4, 9));
  EXPECT_THAT(result.out, HasSubstr("hf-00000009: step 9 was skipped, or its loss is not plausi"));
  EXPECT_FALSE(fs::exists(Checkpoints("run") / "hf-00000009"));
  EXPECT_THAT(EventNames("run"), ElementsAre("start", "end", "resume", "not_exported", "diverged"));
  // Nor does another run take it for good.
  EXPECT_THAT(MustTrain("other", 10, {Load("run")}).out,
              AllOf(HasSubstr("WARNING: skipped " + StepDir("run", 9).string()),
                    HasSubstr("step-00000004 (step 4)")));
  EXPECT_THAT(EventNames("other"), ElementsAre("skipped_diverged", "resume", "end"));
  // The user may ask for step 9: nothing is left to train then, but the command still fails.
  result = MustTrain("run", 9, Joined(broken, {"--ckpt-step=9"}), 1);
  EXPECT_THAT(result.err, HasSubstr("--ckpt-step"));
  EXPECT_TRUE(fs::exists(StepDir("run", 9)));

  result = MustTrain("run", 9, keep);
  EXPECT_THAT(result.out, HasSubstr("step-00000004 (step 4)"));
  EXPECT_THAT(result.out,
              HasSubstr("WARNING: skipped " + StepDir("run", 9).string() +
                        ": the run had diverged at step 9: the loss was not plausible; it is now "
                        "called step-00000009.diverged"));
  EXPECT_THAT(EventNames("run"), ElementsAre("start", "end", "resume", "not_exported", "diverged",
                                             "skipped_diverged", "resume", "end"));
  ExpectUndisturbed("run", 9);
}

// Its message, which names the file, has the words of the other end.
TEST_F(TrainCommandTest, ARunThatFailsIsNotRecordedAsOneThatHasDiverged) {
  const fs::path tokens = root_ / "training has diverged: tokens.bin";
  WriteRandomTokens(tokens, /*vocabulary=*/200, /*count=*/20000);  // twice the model's
  const Result result = MustTrain("run", 2, {"--train-data-path=" + tokens.string()}, 1);
  EXPECT_THAT(result.err, HasSubstr("training has diverged: tokens.bin"));
  EXPECT_THAT(EventNames("run"), ElementsAre("start", "failed"));
}

}  // namespace
}  // namespace tessera
