// What a run takes from a checkpoint, and what it says about it.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tokenizer/byte_tokenizer.h"
#include "tools/ckpt/commands.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using ContentCommandTest = CommandTest;

TEST_F(ContentCommandTest, SettingsThatDifferAreListed) {
  MustTrain("run", 2);
  const Result same = MustTrain("run", 4, {Load("run")});
  EXPECT_THAT(same.out, Not(HasSubstr("settings differ")));
  const Result other = MustTrain("run", 6, {Load("run"), "--lr=2e-3", "--clip-grad=0.5"});
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
  MustTrain("run", 2);
  std::filesystem::copy(root_ / "run", root_ / "other", std::filesystem::copy_options::recursive);
  // Both without any flag and with Megatron's flag for it.
  const Result overridden =
      Train("run", 4, {Load("run"), "--lr=5e-3", "--override-opt-param-scheduler"});
  ASSERT_EQ(overridden.exit_code, 0) << overridden.err;
  EXPECT_THAT(overridden.out, HasSubstr("| lr 4.90e-03 |"));
  const Result kept = MustTrain("other", 4,
                                {Load("other"), "--lr=5e-3", "--lr-warmup-iters=50",
                                 "--clip-grad=0.5", "--use-checkpoint-opt-param-scheduler"});
  EXPECT_THAT(kept.out, HasSubstr("| lr 9.80e-04 |"));
  EXPECT_THAT(kept.out, HasSubstr("clip_grad"));
  EXPECT_THAT(kept.out, Not(HasSubstr("  lr ")));
  const Result both = Train(
      "other", 6,
      {Load("other"), "--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("exclude each other"));
}

TEST_F(ContentCommandTest, OtherDataCanBeginWithWeightsOptimizerAndStep) {
  MustTrain("run", 4);
  const Result refused = Train("run", 6, {Load("run"), "--seq-length=16"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--load-content=model,optimizer,scheduler,rng"));
  const Result begun = MustTrain(
      "run", 6, {Load("run"), "--seq-length=16", "--load-content=model,optimizer,scheduler,rng"});
  EXPECT_THAT(begun.out, HasSubstr("weights and optimizer, reading the data from the beginning"));
  EXPECT_THAT(begun.out, HasSubstr("step 5/6 "));
  const nlohmann::json last = Records("run").back();
  EXPECT_EQ(last["step"], 6);
  EXPECT_EQ(last["consumed_samples"], 16);
  // From then on as any run.
  const Result resumed = MustTrain("run", 8, {Load("run"), "--seq-length=16"});
  EXPECT_EQ(Records("run").back()["consumed_samples"], 32);
}

TEST_F(ContentCommandTest, AnOptimizerWithoutItsStepKeepsItsMoments) {
  MustTrain("base", 4);
  const Result warm = MustTrain("warm", 2, {Load("base"), "--load-content=model,optimizer"});
  EXPECT_THAT(warm.out, HasSubstr("weights and optimizer, starting at step 0"));
  EXPECT_THAT(warm.out, HasSubstr("step 1/2 "));
  const Result cold = MustTrain("cold", 2, {Load("base"), "--load-content=model"});
  EXPECT_THAT(cold.out, HasSubstr("weights alone, starting at step 0"));
  EXPECT_EQ(Losses("warm").at(1), Losses("cold").at(1)) << "the weights are the same";
  EXPECT_NE(Losses("warm").at(2), Losses("cold").at(2)) << "the moments are not";
  // A checkpoint may have more updates than steps without being damaged.
  const Result resumed = MustTrain("warm", 4, {Load("warm")});
  EXPECT_THAT(resumed.out, HasSubstr("step 3/4 "));
}

TEST_F(ContentCommandTest, ContentThatMakesNoStateIsRefused) {
  MustTrain("base", 2);
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--load-content=optimizer", "--no-load-optim"}, "leave nothing to load"},
      {{"--load-content=model,weights"}, "\"weights\" is none of model, optimizer"},
      {{"--load-content=model", "--finetune"}, "exclude each other"},
      {{"--load-content=model", "--use-checkpoint-opt-param-scheduler"},
       "leaves the scheduler out"}};
  for (const auto& [flags, said] : cases) {
    const Result result = Train("other", 4, Joined(flags, {Load("base")}));
    EXPECT_EQ(result.exit_code, 2) << flags[0];
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

TEST_F(ContentCommandTest, LoadCkptFolderIsTheSameInOneMessage) {
  MustTrain("base", 4, {"--export-llmc=" + (root_ / "base.bin").string()});
  const auto settings = [&](const std::string& folder) {
    const std::filesystem::path path = root_ / "folder.textproto";
    std::ofstream(path) << ReadFile(root_ / "run.textproto") << "checkpoint { load_ckpt_folder { "
                        << folder << " } }\n";
    return path.string();
  };
  const auto train = [&](const std::string& run, const std::string& folder) {
    return Run(
        Joined({Runfile("trainer/app/train"), "--config=" + settings(folder)}, Saving(run, 6)));
  };
  const std::string path = "path: \"" + Checkpoints("base").string() + "\"";
  const Result all = train("all", path);
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("step 5/6 "));
  const Result some = train("some", path + " content: \"model\" content: \"scheduler\"");
  ASSERT_EQ(some.exit_code, 0) << some.err;
  EXPECT_THAT(some.out, HasSubstr("s: weights, reading the data from the beginning\n"));
  const Result llmc =
      train("llmc", "path: \"" + (root_ / "base.bin").string() + "\" ckpt_type: \"llmc\"");
  ASSERT_EQ(llmc.exit_code, 0) << llmc.err;
  EXPECT_THAT(llmc.out, HasSubstr("weights from "));
  EXPECT_THAT(llmc.out, HasSubstr("step 1/6 "));
  const Result other = train("other", path + " ckpt_type: \"other\"");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("expected one of tessera, "));
}

TEST_F(ContentCommandTest, AnLlmcFileGivesTheSizesAndIsNeverIgnoredInSilence) {
  const std::string file = (root_ / "weights.bin").string();
  MustTrain("base", 4, {"--export-llmc=" + file, "--export-llmc-interval=2"});
  EXPECT_EQ(ReadFile(root_ / "weights-00000004.bin"), ReadFile(file));
  EXPECT_NE(ReadFile(root_ / "weights-00000002.bin"), ReadFile(file));

  const Result begun =
      Run(Joined({Runfile("trainer/app/train"), "--llmc-filepath=" + file, "--seq-length=32",
                  "--threads=1", "--train-data-path=" + Tokens()},
                 Saving("alone", 2)));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  EXPECT_THAT(begun.out, HasSubstr("weights from " + file));

  const Result both = MustTrain("base", 6, {Load("base"), "--llmc-filepath=" + file});
  EXPECT_THAT(both.out, HasSubstr("llmc_filepath=" + file + " is not read: there is a checkpoint"));
  const Result never = Train("base", 8, {Load("base"), "--llmc-filepath=" + file, "--finetune"});
  EXPECT_EQ(never.exit_code, 2);
  EXPECT_THAT(never.err, HasSubstr("llmc_filepath and finetune exclude each other"));
}

// With a rate of 0 the weights stay as they were.
TEST_F(ContentCommandTest, WeightsMayComeFromAnLlmcFileAndTheRestFromACheckpoint) {
  const std::string last = (root_ / "weights.bin").string(),
                    early = (root_ / "weights-00000002.bin").string(),
                    kept = (root_ / "kept.bin").string();
  MustTrain("base", 4, {"--export-llmc=" + last, "--export-llmc-interval=2"});
  const Result both =
      MustTrain("both", 6,
                {Load("base"), "--load-content=optimizer,scheduler", "--lr=0", "--min-lr=0",
                 "--llmc-filepath=" + early, "--export-llmc=" + kept});
  EXPECT_THAT(both.out, HasSubstr("weights from " + early));
  EXPECT_THAT(both.out,
              HasSubstr("s: optimizer without weights, reading the data from the beginning\n"));
  EXPECT_THAT(both.out, Not(HasSubstr("is not read")));
  EXPECT_THAT(both.out, HasSubstr("step 5/6 "));
  EXPECT_EQ(ReadFile(kept), ReadFile(early));
  EXPECT_NE(ReadFile(kept), ReadFile(last));
}

// Every file in and below a folder, by its path there.
std::map<std::string, std::string> FilesIn(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[std::filesystem::relative(entry.path(), folder).string()] = ReadFile(entry.path());
  }
  return files;
}

TEST_F(ContentCommandTest, HuggingFaceWeightsOnTheWayAreThoseOfAConversion) {
  const std::filesystem::path tokenizer = root_ / "tokenizer";
  std::filesystem::create_directory(tokenizer);
  for (const TokenizerFile& file : ByteTokenizer().Files()) {
    std::ofstream(tokenizer / file.name, std::ios::binary) << file.contents;
  }
  const auto exported = [&](int step) {
    return Checkpoints("run") / ("hf-0000000" + std::to_string(step));
  };
  const auto converted = [&](int step) {
    const std::filesystem::path folder = root_ / "converted";
    std::filesystem::remove_all(folder);
    std::ostringstream out, err;
    const int code = ckpt::RunCkpt({"convert", StepDir("run", step).string(), folder.string(),
                                    "--to=hf", "--tokenizer=" + tokenizer.string()},
                                   {out, err, nullptr});
    EXPECT_EQ(code, 0) << err.str();
    return FilesIn(folder);
  };
  const Words flags = {"--data-parallel-size=2",
                       "--zero-stage=2",
                       "--tensor-model-parallel-size=2",
                       "--bf16",
                       "--vocab-size=257",
                       "--tokenizer-model=" + tokenizer.string(),
                       "--export-hf-interval=2"};
  const Result four = Run(Launcher(Saving("run", 4, flags)));
  ASSERT_EQ(four.exit_code, 0) << four.err;
  EXPECT_THAT(four.out, HasSubstr("weights written to " + exported(4).string() + "\n"));
  for (const int step : {2, 4}) {
    const auto files = FilesIn(exported(step));
    EXPECT_EQ(files.count("config.json") + files.count("model.safetensors") +
                  files.count("tokenizer.json") + files.count("generation_config.json"),
              4);
    EXPECT_TRUE(files == converted(step)) << step;
  }
  EXPECT_NE(FilesIn(exported(2))["model.safetensors"], FilesIn(exported(4))["model.safetensors"]);

  // A run that passes the step again: what is there is replaced as a whole, and what a killed run
  // has left is removed.
  std::filesystem::remove_all(StepDir("run", 4));
  std::ofstream(exported(4) / "model.safetensors") << "old";
  std::ofstream(exported(4) / "old.txt") << "old";
  std::filesystem::create_directories(exported(4).string() + ".unfinished/step-00000000");
  const Result six = Run(Launcher(Saving("run", 6, flags)));
  ASSERT_EQ(six.exit_code, 0) << six.err;
  EXPECT_THAT(six.out, HasSubstr("(step 3) in"));
  EXPECT_TRUE(FilesIn(exported(4)) == converted(4));
  EXPECT_TRUE(FilesIn(exported(6)) == converted(6));
  EXPECT_EQ(Steps("run"), (std::set<int64_t>{2, 4, 6}));
  for (const auto& entry : std::filesystem::directory_iterator(Checkpoints("run"))) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("unfinished")));
  }
  // One that starts from such a folder has its weights.
  const Result begun = Train(
      "begun", 2, {"--load=" + exported(6).string(), "--finetune", "--vocab-size=257", "--bf16"});
  EXPECT_EQ(begun.exit_code, 0) << begun.err;
}

TEST_F(ContentCommandTest, ALoadOfSomeTensorsSaysHowMany) {
  MustTrain("base", 2);
  const Result some = MustTrain("some", 4, {Load("base"), "--load-tensors=*.attn.c_attn.*"});
  EXPECT_THAT(some.out, HasSubstr("s: 4 of 28 parameters and their optimizer state\n"));
}

TEST_F(ContentCommandTest, FinetuneIntoItsOwnFolderIsAdvisedToSaveElsewhere) {
  MustTrain("run", 2);
  const Result refused = Train("run", 4, {Load("run"), "--finetune"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("save to another folder"));
  EXPECT_THAT(refused.err, Not(HasSubstr("resume with --load=")));
}

TEST_F(ContentCommandTest, AnEvaluationAloneIsRecorded) {
  MustTrain("run", 2);
  const std::string before = ReadFile(root_ / "run" / "metrics.jsonl");
  const Result evaluated =
      Run(Alone({Load("run"), "--train-iters=0", "--eval-iters=2", "--valid-data-path=" + Tokens(),
                 "--run-dir=" + RunDir("run").string()}));
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const nlohmann::json record = Records("run").back();
  EXPECT_EQ(record["kind"], "eval");
  EXPECT_EQ(record["step"], 2);
  EXPECT_EQ(record["tokens"], 2 * 8 * 32);
  EXPECT_TRUE(ReadFile(root_ / "run" / "metrics.jsonl").starts_with(before)) << "nothing is lost";
}

TEST_F(ContentCommandTest, TheBestLossIsTheTrainingsWithoutEvaluations) {
  MustTrain("run", 4);
  double best = 100;
  for (const nlohmann::json& record : Records("run")) {
    best = std::min(best, record["loss"].get<double>());
  }
  const auto storage = ckpt::OpenStorage(Checkpoints("run").string());
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto manifest = ckpt::ReadManifest(**storage, "step-00000004");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->trainer().best_loss(), best);
}

}  // namespace
}  // namespace tessera
