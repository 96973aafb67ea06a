// What a run takes from a checkpoint, and what it says about it.

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
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
      MustTrain("run", 4, {Load("run"), "--lr=5e-3", "--override-opt-param-scheduler"});
  EXPECT_THAT(overridden.out, HasSubstr("| lr 4.90e-03 |"));
  const Result kept =
      MustTrain("other", 4,
                {Load("other"), "--lr=5e-3", "--lr-warmup-iters=50", "--weight-decay=0.5",
                 "--clip-grad=0.5", "--use-checkpoint-opt-param-scheduler"});
  EXPECT_THAT(kept.out, HasSubstr("| lr 9.80e-04 |"));
  EXPECT_THAT(kept.out, HasSubstr("clip_grad"));
  EXPECT_THAT(kept.out, Not(HasSubstr("  lr ")));
  const auto decay = [&](int64_t step) {
    const auto saved = ckpt::Checkpoint::Open(StepDir("other", step).string());
    return saved.value().manifest().optimizer().groups(0).options().at("weight_decay");
  };
  EXPECT_EQ(decay(4), decay(2));
  const Result both = MustTrain(
      "other", 6,
      {Load("other"), "--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"}, 2);
  EXPECT_THAT(both.err, HasSubstr("exclude each other"));
}

// A folder that was used before, and a checkpoint of another run.
TEST_F(ContentCommandTest, RecordsOfAnotherRunStay) {
  MustTrain("run", 2);
  MustTrain("used", 6, {"--lr=2e-3"});
  const std::filesystem::path records = RunDir("used") / "metrics.jsonl";
  const std::string before = ReadFile(records);
  const Result result = MustRun(
      Alone({"--train-iters=4", Load("run"), "--save-interval=2",
             "--run-dir=" + RunDir("used").string(), "--save=" + (root_ / "new").string()}));
  EXPECT_THAT(result.out, HasSubstr("the earlier records are kept in "));
  EXPECT_EQ(ReadFile(records.string() + ".before"), before);
  EXPECT_EQ(Losses("used").begin()->first, 3);
  // A start that saved nothing has lost its steps, which the next one says.
  const Words unsaved = {Load("run"), "--save-interval=9", "--save-last-step=false",
                         "--non-persistent-save-interval=0"};
  MustTrain("unsaved", 4, unsaved);
  MustTrain("unsaved", 4, unsaved);
  EXPECT_THAT(ReadFile(RunDir("unsaved") / "events.jsonl"), HasSubstr("\"lost_steps\":2"));
  // The records of a run that has saved may be another's: what was lost is unknown.
  for (const char* lr : {"--lr=2e-3", "--lr=3e-3"}) {
    MustRun(Alone({"--train-iters=4", Load("run"), lr, "--run-dir=" + RunDir("tunings").string(),
                   "--save-interval=2", "--save=" + (root_ / lr).string()}));
  }
  const std::string events = ReadFile(RunDir("tunings") / "events.jsonl");
  EXPECT_EQ(Count(events, "\"event\":\"resume\""), 2);
  EXPECT_EQ(Count(events, "\"lost_steps\""), 0);
}

// Master weights begin in fp32, and not with what bf16 keeps of them.
TEST_F(ContentCommandTest, WeightsHaveTheirPrecisionWhereverTheyComeFrom) {
  const std::string plain = (root_ / "plain.bin").string();
  MustTrain("base", 2, {"--export-llmc=" + plain});
  MustTrain("file", 4, {"--llmc-filepath=" + plain, "--bf16"});
  MustTrain("tuned", 4, {Load("base"), "--finetune", "--bf16"});
  EXPECT_EQ(Losses("tuned"), Losses("file"));
}

TEST_F(ContentCommandTest, OtherDataCanBeginWithWeightsOptimizerAndStep) {
  MustTrain("run", 4);
  const Result refused = MustTrain("run", 6, {Load("run"), "--seq-length=16"}, 1);
  EXPECT_THAT(refused.err, HasSubstr("--load-content=model,optimizer,scheduler,rng"));
  const Result begun = MustTrain(
      "run", 6, {Load("run"), "--seq-length=16", "--load-content=model,optimizer,scheduler,rng"});
  EXPECT_THAT(begun.out, HasSubstr("weights and optimizer, reading the data from the beginning"));
  constexpr char kOnce[] = "a restart of this command leaves the same parts out again";
  EXPECT_THAT(begun.out, HasSubstr(kOnce));
  EXPECT_THAT(begun.out, HasSubstr("step 5/6 "));
  const nlohmann::json last = Records("run").back();
  EXPECT_EQ(last["step"], 6);
  EXPECT_EQ(last["consumed_samples"], 16);
  // From then on as any run.
  const Result resumed = MustTrain("run", 8, {Load("run"), "--seq-length=16"});
  EXPECT_EQ(Records("run").back()["consumed_samples"], 32);
  EXPECT_THAT(resumed.out, Not(HasSubstr(kOnce)));
  // The checkpoints since then, and the records, still tell.
  constexpr char kMark[] = "step 4 without sampler";
  ASSERT_OK_AND_ASSIGN(const auto saved, ckpt::Checkpoint::Open(StepDir("run", 8).string()));
  EXPECT_EQ(saved.manifest().trainer().extra().at("partial_resumes"), kMark);
  ASSERT_OK_AND_ASSIGN(const auto before, ckpt::Checkpoint::Open(StepDir("run", 4).string()));
  EXPECT_FALSE(before.manifest().trainer().extra().contains("partial_resumes"));
  EXPECT_EQ(Count(ReadFile(RunDir("run") / "events.jsonl"),
                  absl::StrCat("\"partial_resumes\":\"", kMark, "\"")),
            2);
  // A second time adds to the mark.
  MustTrain("run", 10, {Load("run"), "--seq-length=16", "--no-load-optim"});
  ASSERT_OK_AND_ASSIGN(const auto second, ckpt::Checkpoint::Open(StepDir("run", 10).string()));
  EXPECT_EQ(second.manifest().trainer().extra().at("partial_resumes"),
            absl::StrCat(kMark, "; step 8 without optimizer"));
  // What allow_missing permits was not missing.
  const Words same = {Load("run"), "--seq-length=16", "--no-load-rng", "--allow-missing"};
  MustTrain("run", 12, same);
  ASSERT_OK_AND_ASSIGN(const auto third, ckpt::Checkpoint::Open(StepDir("run", 12).string()));
  EXPECT_EQ(third.manifest().trainer().extra().at("partial_resumes"),
            absl::StrCat(kMark, "; step 8 without optimizer; step 10 without rng"));
  // With another folder, such flags count for its checkpoint alone.
  const Words other = {Load("run"), "--seq-length=16", "--no-load-optim"};
  EXPECT_THAT(MustTrain("other", 10, other).out, Not(HasSubstr(kOnce)));
  EXPECT_THAT(MustTrain("other", 12, other).out, Not(HasSubstr(kOnce)));
}

TEST_F(ContentCommandTest, AnLlmcFileGivesTheSizesAndIsNeverIgnoredInSilence) {
  const std::string file = (root_ / "weights.bin").string();
  MustTrain("base", 4, {"--export-llmc=" + file, "--export-llmc-interval=2"});
  EXPECT_EQ(ReadFile(root_ / "weights-00000004.bin"), ReadFile(file));
  EXPECT_NE(ReadFile(root_ / "weights-00000002.bin"), ReadFile(file));

  const Result begun =
      MustRun(Joined({Runfile("trainer/app/train"), "--llmc-filepath=" + file, "--seq-length=32",
                      "--threads=1", "--train-data-path=" + Tokens()},
                     Saving("alone", 2)));
  EXPECT_THAT(begun.out, HasSubstr("weights from " + file));

  const Result both = MustTrain("base", 6, {Load("base"), "--llmc-filepath=" + file});
  EXPECT_THAT(both.out, HasSubstr("llmc_filepath=" + file + " is not read: there is a checkpoint"));
  const Result never =
      MustTrain("base", 8, {Load("base"), "--llmc-filepath=" + file, "--finetune"}, 2);
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
    WriteFile(tokenizer / file.name, file.contents);
  }
  const auto exported = [&](int step) {
    return Checkpoints("run") / ("hf-0000000" + std::to_string(step));
  };
  const auto converted = [&](int step, const std::string& dtype = "bf16") {
    const std::filesystem::path folder = root_ / "converted";
    std::filesystem::remove_all(folder);
    std::ostringstream out, err;
    const int code =
        ckpt::RunCkpt({"convert", StepDir("run", step).string(), folder.string(), "--to=hf",
                       "--tokenizer=" + tokenizer.string(), "--dtype=" + dtype},
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
  const Result four = MustRun(Launcher(Saving("run", 4, flags)));
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
  WriteFile(exported(4) / "model.safetensors", "old");
  WriteFile(exported(4) / "old.txt", "old");
  std::filesystem::create_directories(exported(4).string() + ".unfinished/step-00000000");
  Words more = flags;
  more.insert(more.end(), {"--last-save-in-hf", "--export-dtype=float32"});
  const Result seven = MustRun(Launcher(Saving("run", 7, more)));
  EXPECT_THAT(seven.out, HasSubstr("(step 3) in"));
  for (const int step : {4, 6, 7}) {
    EXPECT_TRUE(FilesIn(exported(step)) == converted(step, "f32")) << step;
  }
  EXPECT_FALSE(std::filesystem::exists(exported(5)));
  // Also with nothing left to train.
  std::filesystem::remove_all(exported(7));
  MustRun(Launcher(Saving("run", 7, more)));
  EXPECT_TRUE(FilesIn(exported(7)) == converted(7, "f32"));
  EXPECT_EQ(Steps("run"), (std::set<int64_t>{2, 4, 6, 7}));
  for (const auto& entry : std::filesystem::directory_iterator(Checkpoints("run"))) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("unfinished")));
  }
  // One that starts from such a folder has its weights.
  MustTrain("begun", 2,
            {"--load=" + exported(6).string(), "--finetune", "--vocab-size=257", "--bf16"});
}

// Writes a model file with 100000 in the last position's embedding, which no sequence of a run
// reaches. The gpt2-tiny of these tests has 100 ids, padded to 128, of 64 numbers.
void WriteWithLargeWeight(const std::string& from, const std::string& to) {
  constexpr size_t kHeaderBytes = 1024, kWidth = 64, kPositions = 64, kPaddedIds = 128;
  constexpr float kLarge = 100'000;
  std::string bytes = ReadFile(from);
  bytes.replace(kHeaderBytes + (kPaddedIds + kPositions - 1) * kWidth * sizeof(kLarge),
                sizeof(kLarge), reinterpret_cast<const char*>(&kLarge), sizeof(kLarge));
  WriteFile(to, bytes);
}

TEST_F(ContentCommandTest, ARunGoesOnWhereItsWeightsAreBeyondTheDTypeOfExports) {
  const std::string plain = (root_ / "plain.bin").string(), large = (root_ / "large.bin").string();
  MustTrain("base", 2, {"--export-llmc=" + plain});
  WriteWithLargeWeight(plain, large);
  const Words flags = {"--llmc-filepath=" + large, "--export-hf-interval=2",
                       "--export-dtype=float16", "--weight-decay=0"};
  const Words two = Joined(flags, {"--data-parallel-size=2"});
  for (const std::string run : {"alone", "both"}) {
    const Result trained =
        run == "alone" ? MustTrain(run, 6, flags) : MustRun(Launcher(Saving(run, 6, two)));
    for (const int step : {2, 4, 6}) {
      const std::string folder =
          (Checkpoints(run) / ("hf-0000000" + std::to_string(step))).string();
      EXPECT_THAT(trained.out, HasSubstr("no weights written to " + folder +
                                         ": tensor transformer.wpe.weight: element [63,0] is "
                                         "100000, which F16 cannot hold; --export-dtype=float32 "
                                         "can\n"));
      EXPECT_FALSE(std::filesystem::exists(folder));
    }
    EXPECT_EQ(Steps(run), (std::set<int64_t>{2, 4, 6}));
    EXPECT_EQ(Records(run).back()["step"], 6);
    for (const auto& entry : std::filesystem::directory_iterator(Checkpoints(run))) {
      EXPECT_THAT(entry.path().string(), Not(HasSubstr("unfinished")));
    }
  }
  EXPECT_EQ(Count(ReadFile(RunDir("alone") / "events.jsonl"), "\"not_exported\""), 3);
  // Nor is it the end of one that has nothing left to train.
  EXPECT_THAT(MustTrain("alone", 6, flags).out, HasSubstr("no weights written to "));
  // At the end, the error is the run's, after the last save.
  Words end = Joined(flags, {"--last-save-in-hf"});
  const Result refused = MustTrain("alone", 8, end, 1);
  const std::string last = (Checkpoints("alone") / "hf-00000008").string();
  EXPECT_THAT(refused.err, HasSubstr("no weights written to " + last));
  EXPECT_EQ(Steps("alone"), (std::set<int64_t>{2, 4, 6, 8}));
  EXPECT_FALSE(std::filesystem::exists(last));
  // What the message advises works, and writes each step's weights once.
  end.push_back("--export-dtype=float32");
  const Result ten = MustTrain("alone", 10, end);
  EXPECT_EQ(Count(ten.out, "weights written to"), 2);
  EXPECT_THAT(ten.out, AllOf(HasSubstr("weights written to " + last),
                             HasSubstr("weights written to " +
                                       (Checkpoints("alone") / "hf-00000010").string())));
}

// A folder is in the place of the exported file. The step is saved first, and the run goes on.
TEST_F(ContentCommandTest, AnExportThatFailsCostsNothingElse) {
  const auto weights = [&](const std::string& step) { return root_ / ("w" + step + ".bin"); };
  std::filesystem::create_directories(weights("-00000002") / "in the way");
  const Result trained =
      MustRun(Launcher(Saving("run", 4,
                              {"--data-parallel-size=2", "--export-llmc=" + weights("").string(),
                               "--export-llmc-interval=2"})));
  EXPECT_THAT(trained.out, HasSubstr(weights("-00000002").string() + ": Is a directory\n"));
  EXPECT_LT(trained.out.find("saved step 2:"), trained.out.find("Is a directory"));
  EXPECT_EQ(Steps("run"), (std::set<int64_t>{2, 4}));
  EXPECT_EQ(Count(ReadFile(RunDir("run") / "events.jsonl"), "\"not_exported\""), 1);
  EXPECT_EQ(ReadFile(weights("-00000004")), ReadFile(weights("")));
}

// The process that saved a step has died before it exported.
TEST_F(ContentCommandTest, AResumeMakesTheExportsOfItsStepThatAreMissing) {
  const auto weights = [&](int step) {
    return root_ / ("w-0000000" + std::to_string(step) + ".bin");
  };
  const auto hf = [&](const std::string& run, int step) {
    return Checkpoints(run) / ("hf-0000000" + std::to_string(step));
  };
  const Words flags = {"--export-llmc=" + (root_ / "w.bin").string(), "--export-llmc-interval=2",
                       "--export-hf-interval=2", "--data-parallel-size=2"};
  const auto train = [&](const std::string& run, int steps, const Words& more = {}) {
    return MustRun(Launcher(Saving(run, steps, Joined(flags, more)))).out;
  };
  train("run", 2);
  const std::string two = ReadFile(weights(2));
  const auto hf_two = FilesIn(hf("run", 2));
  std::filesystem::remove(weights(2));
  std::filesystem::remove_all(hf("run", 2));
  train("run", 4);
  EXPECT_TRUE(ReadFile(weights(2)) == two);
  EXPECT_TRUE(FilesIn(hf("run", 2)) == hf_two);
  // One that is there stays as it is, and nothing is left to train.
  const std::string four = ReadFile(weights(4));
  WriteFile(hf("run", 4) / "mine.txt", "mine");
  std::filesystem::remove(weights(4));
  EXPECT_THAT(train("run", 4), HasSubstr("nothing left to train"));
  EXPECT_TRUE(ReadFile(weights(4)) == four);
  EXPECT_TRUE(std::filesystem::exists(hf("run", 4) / "mine.txt"));
  // Weights that the run has not saved are not owed.
  std::filesystem::remove(weights(4));
  train("other", 6, {Load("run")});
  train("run", 6, {Load("run"), "--load-content=optimizer,scheduler"});
  EXPECT_FALSE(std::filesystem::exists(weights(4)));
  EXPECT_FALSE(std::filesystem::exists(hf("other", 4)));
  EXPECT_TRUE(std::filesystem::exists(hf("other", 6)));
}

// An export that ends the process, as for lack of memory, does not end that of every start.
TEST_F(ContentCommandTest, AnExportThatEndsTheProcessIsTriedAgainOnce) {
  const std::filesystem::path weights = root_ / "w-00000002.bin";
  const std::string mark = weights.string() + ".retried";
  const std::filesystem::path next = Checkpoints("run") / "hf-00000002";
  const Words flags = {"--export-llmc=" + (root_ / "w.bin").string(), "--export-llmc-interval=2",
                       "--export-hf-interval=2"};
  MustTrain("run", 2, flags);
  std::filesystem::remove(weights);
  std::filesystem::remove_all(next);
  {
    const Process start(
        Joined({"/usr/bin/env", "LD_PRELOAD=" + Runfile("tests/resume/slow_disk.so"),
                "SLOW_DISK_GATE=" + (root_ / "gate").string()},
               Alone(Saving("run", 3, flags))),
        root_);
    EXPECT_TRUE(
        start.WaitUntil([&] { return std::filesystem::exists(weights.string() + ".unfinished"); }));
    start.Kill(SIGKILL);
    EXPECT_EQ(start.Wait().exit_code, 128 + SIGKILL);
  }
  ASSERT_TRUE(std::filesystem::exists(mark)) << "the export had ended before the kill";
  const std::string said = "no weights written to " + weights.string() + ": a process has died ";
  // What would have followed is made.
  const Words by_two = Joined(flags, {"--data-parallel-size=2"});
  EXPECT_THAT(MustRun(Launcher(Saving("run", 2, by_two))).out,
              AllOf(HasSubstr("nothing left to train"), HasSubstr(said)));
  EXPECT_TRUE(std::filesystem::exists(next));
  EXPECT_FALSE(std::filesystem::exists(weights));
  EXPECT_TRUE(std::filesystem::exists(mark));
  std::filesystem::remove(mark);
  EXPECT_THAT(MustTrain("run", 3, flags).out, HasSubstr("weights written to " + weights.string()));
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST_F(ContentCommandTest, ALoadOfSomeTensorsSaysHowMany) {
  MustTrain("base", 2);
  const Result some = MustTrain("some", 4, {Load("base"), "--load-tensors=*.attn.c_attn.*"});
  EXPECT_THAT(some.out, HasSubstr("s: 4 of 28 parameters and their optimizer state\n"));
}

TEST_F(ContentCommandTest, FinetuneIntoItsOwnFolderIsAdvisedToSaveElsewhere) {
  MustTrain("run", 2);
  const Result refused = MustTrain("run", 4, {Load("run"), "--finetune"}, 1);
  EXPECT_THAT(refused.err, HasSubstr("save to another folder"));
  EXPECT_THAT(refused.err, Not(HasSubstr("resume with --load=")));
}

TEST_F(ContentCommandTest, AnEvaluationAloneIsRecorded) {
  MustTrain("run", 2);
  const std::string before = ReadFile(root_ / "run" / "metrics.jsonl");
  MustRun(Alone({Load("run"), "--train-iters=0", "--eval-iters=2", "--valid-data-path=" + Tokens(),
                 "--run-dir=" + RunDir("run").string()}));
  const nlohmann::json record = Records("run").back();
  EXPECT_EQ(record["kind"], "eval");
  EXPECT_EQ(record["step"], 2);
  EXPECT_EQ(record["tokens"], 2 * 8 * 32);
  EXPECT_TRUE(ReadFile(root_ / "run" / "metrics.jsonl").starts_with(before)) << "nothing is lost";
}

// The record of the step keeps its mark as the best, and is the only one.
TEST_F(ContentCommandTest, AFinishedRunThatIsStartedAgainAddsNoRecord) {
  const Words flags = {"--eval-interval=2", "--eval-iters=2", "--valid-data-path=" + Tokens()};
  MustTrain("run", 2, flags);
  const std::string before = ReadFile(RunDir("run") / "metrics.jsonl");
  EXPECT_THAT(MustTrain("run", 2, flags).out, HasSubstr("nothing left to train"));
  EXPECT_EQ(ReadFile(RunDir("run") / "metrics.jsonl"), before);
}

// The checkpoint of step 3 was saved without an evaluation, that of step 2 with one. Texts of one
// token have a lower loss than random ones.
TEST_F(ContentCommandTest, AnEvaluationThatARunOwesMayBeItsBest) {
  constexpr size_t kHeaderBytes = 1024;
  std::string one = ReadFile(Tokens());
  std::fill(one.begin() + kHeaderBytes, one.end(), '\0');
  WriteFile(root_ / "one.bin", one);
  for (const int steps : {2, 3}) {
    const std::string run = std::to_string(steps);
    const Words evaluating = {"--eval-interval=2", "--eval-iters=2"};
    MustTrain(run, steps, Joined(evaluating, {"--valid-data-path=" + Tokens()}));
    const double before = Records(run)[2]["eval_loss"];
    const std::string valid = "--valid-data-path=" + (root_ / "one.bin").string();
    const Result again = MustTrain(run, steps, Joined(evaluating, {valid}));
    EXPECT_THAT(again.out, HasSubstr("nothing left to train"));
    const nlohmann::json record = Records(run).back();
    EXPECT_EQ(record["step"], steps);
    EXPECT_LT(record["eval_loss"], before);
    EXPECT_EQ(record["best"], steps == 3);
  }
}

TEST_F(ContentCommandTest, TheBestTrainingLossIsApartFromThatOfEvaluations) {
  MustTrain("run", 4);
  double best = 100;
  for (const nlohmann::json& record : Records("run")) {
    best = std::min(best, record["loss"].get<double>());
  }
  ASSERT_OK_AND_ASSIGN(const auto storage, OpenStorage(Checkpoints("run").string()));
  ASSERT_OK_AND_ASSIGN(const auto manifest, ckpt::ReadManifest(*storage, "step-00000004"));
  EXPECT_EQ(manifest.trainer().best_loss(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(std::stod(manifest.trainer().extra().at("best_training_loss")), best);
  // Evaluations that begin later have a best one, though its loss is higher.
  const Words evaluates = {"--valid-data-path=" + Tokens(), "--eval-iters=2"};
  EXPECT_THAT(MustTrain("run", 5, evaluates).out,
              HasSubstr("nothing is evaluated: eval_interval=1000 does not divide step 5"));
  EXPECT_THAT(MustTrain("run", 6, Joined(evaluates, {"--eval-interval=6"})).out,
              Not(HasSubstr("nothing is evaluated")));
  const nlohmann::json record = Records("run").back();
  ASSERT_EQ(record["kind"], "eval");
  EXPECT_GT(record["eval_loss"], best);
  EXPECT_EQ(record["best"], true);
  ASSERT_OK_AND_ASSIGN(const auto later, ckpt::ReadManifest(*storage, "step-00000006"));
  EXPECT_EQ(later.trainer().best_loss(), record["eval_loss"].get<double>());
  EXPECT_LE(std::stod(later.trainer().extra().at("best_training_loss")), best);
}

}  // namespace
}  // namespace tessera
