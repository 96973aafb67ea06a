#include "tools/compare_runs/run_records.h"

#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/status/status.h"
#include "base/crc32c.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/compare_runs/comparison.h"
#include "tools/compare_runs/comparison_report.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/metrics.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunRecordsTest : public ::testing::Test {
 protected:
  void WriteMetrics(const std::string& text) const { Write("metrics.jsonl", text); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  const TestFolder own_;
  const std::filesystem::path folder_ = own_.path();
};

TEST_F(RunRecordsTest, ReadsWhatARunWrites) {
  const double infinity = std::numeric_limits<double>::infinity();
  ASSERT_OK_AND_ASSIGN(auto writer,
                       MetricsWriter::Open((folder_ / "metrics.jsonl").string(), std::nullopt));
  ASSERT_OK(writer->Write(StepMetrics{
      .step = 1, .loss = 1.0 / 3, .lr = 1e-3, .grad_norm = 0.1, .tokens_per_second = 1234.5}));
  ASSERT_OK(writer->Write(StepMetrics{.step = 2, .loss = infinity, .grad_norm = NAN}));
  ASSERT_OK(writer->Write(StepMetrics{.step = 3, .grad_norm = -infinity}));
  ASSERT_OK(writer->Write(EvalMetrics{.step = 2, .loss = 2.0 / 3}));

  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords(folder_.string()));
  ASSERT_EQ(run.steps.size(), 3);
  EXPECT_EQ(run.steps.at(3).grad_norm, -infinity);
  EXPECT_EQ(run.steps.at(1).loss, 1.0 / 3);
  EXPECT_EQ(run.steps.at(1).lr, 1e-3);
  EXPECT_EQ(run.steps.at(1).grad_norm, 0.1);
  EXPECT_EQ(run.steps.at(1).tokens_per_second, 1234.5);
  EXPECT_EQ(run.steps.at(2).loss, infinity);  // null as a number, exact as bits
  EXPECT_TRUE(std::isnan(run.steps.at(2).grad_norm));
  EXPECT_EQ(run.evaluation_losses.at(2), 2.0 / 3);
  EXPECT_THAT(run.notes, IsEmpty());
  EXPECT_FALSE(run.bf16.has_value());
}

TEST_F(RunRecordsTest, LeavesOutDamagedLinesWithANote) {
  WriteMetrics(
      "{\"kind\":\"step\",\"step\":1,\"loss\":3}\n"
      "{\"kind\":\"step\",\"st\n"
      "{\"kind\":\"step\",\"step\":3,\"loss\":1,\"loss_bits\":\"zz\"}\n"
      "{\"kind\":\"step\",\"step\":3,\"loss\":2}\n");
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords((folder_ / "metrics.jsonl").string()));
  EXPECT_EQ(run.steps.size(), 2);
  EXPECT_EQ(run.steps.at(3).loss, 2);
  EXPECT_THAT(run.notes,
              ElementsAre(HasSubstr("line 2 "), HasSubstr("step 3 is recorded more than once")));
}

TEST_F(RunRecordsTest, AFieldThatIsMissingIsNotCompared) {
  WriteMetrics("{\"kind\":\"step\",\"step\":1,\"loss\":3,\"lr\":null}\n");
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords(folder_.string()));
  const RunComparison comparison = CompareRuns(run, run, {.exact = true});
  EXPECT_TRUE(comparison.equal());
  for (const ComparedQuantity& quantity : comparison.quantities) {
    EXPECT_EQ(quantity.compared, quantity.name == "loss" || quantity.name == "lr" ? 1 : 0)
        << quantity.name;
  }
}

TEST_F(RunRecordsTest, TakesThePrecisionFromTheConfig) {
  WriteMetrics("{\"kind\":\"step\",\"step\":1,\"loss\":3}\n");
  Write("config.textproto", "training { bf16: true }");
  EXPECT_EQ(ReadRunRecords(folder_.string())->bf16, true);
  Write("config.textproto", "training { bf16: false }");
  EXPECT_EQ(ReadRunRecords(folder_.string())->bf16, false);
  Write("config.textproto", "training { of_a_later_version: 1 }");
  const auto run = ReadRunRecords(folder_.string());
  EXPECT_FALSE(run->bf16.has_value());
  EXPECT_THAT(run->notes, ElementsAre(HasSubstr("of_a_later_version")));
}

TEST_F(RunRecordsTest, RefusesFilesThatAreNoRecords) {
  EXPECT_TRUE(absl::IsNotFound(ReadRunRecords(folder_.string()).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadRunRecords((folder_ / "nothing").string()).status()));
  std::string noise;
  for (int64_t i = 0; i < 100000; ++i) noise += static_cast<char>(i * i % 251);
  for (const std::string& text :
       {std::string(), std::string("step 1: loss 3\n"), std::string("{\"step\":1,\"loss\":2}\n"),
        std::string("val loss 3.2\n"), std::string(" iteration 1/ 2 | loss: 3 |\n"),
        std::string("step: x  loss: 3\ns:1 trl\ns:9999999999999999999 trl:1.0\n"), noise,
        std::string(100000, '['), std::string(100000, '\0')}) {
    WriteMetrics(text);
    const absl::Status status = ReadRunRecords(folder_.string()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text.substr(0, 50);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Megatron-LM")) << text.substr(0, 50);
  }
}

TEST_F(RunRecordsTest, KeepsTheFirstNotes) {
  WriteMetrics("{\"kind\":\"step\",\"step\":1,\"loss\":3}\n" + std::string(30, '\n'));
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords(folder_.string()));
  EXPECT_EQ(run.notes.size(), 21);
  EXPECT_EQ(run.notes.back(), "and 10 more");
}

// The formats of other trainers, each of a run whose loss is 4 divided by the step's number.

constexpr char kMainLog[] =
    "s:0 tel:10.9901\ns:0 eval:0.2500\ns:0 trl:4.0000 lr:0.001000 norm:1.00\n"
    "s:1 trl:2.0000 lr:0.001000 norm:0.50\ns:2 trl:1.3333 lr:0.001000 norm:0.33\n"
    "s:3 trl:1.0000 lr:0.001000 norm:0.25\ns:4 tel:1.2500\n";
constexpr char kLlmcPrints[] =
    "| precision             | BF16                                               |\n"
    "val loss 10.990100\n"
    "step    1/20 | loss 4.000000 (+nanz)| norm 1.0000 (+nanz)| lr 1.00e-03 | 29.17 ms | 41.2% "
    "bf16 "
    "MFU | 180000 tok/s\n"
    "step    2/20 | loss 2.000000 (+0.12z)| norm 0.5000 (-0.10z)| lr 1.00e-03 | 29.17 ms | 41.2% "
    "bf16 MFU | 180000 tok/s\n"
    "generating:\n---\nstep by step\n---\n"
    "step    4/20 | loss 1.000000 (+0.12z)| norm 0.2500 (-0.10z)| lr 1.00e-03 | 29.17 ms | 41.2% "
    "bf16 MFU | 180000 tok/s\n"
    "val loss 1.250000\n";
constexpr char kInfiniTrain[] =
    "[COMMAND] ./gpt2 --device cuda --dtype float32\n"
    "E20250930 22:00:08.640412 139913778880512 main.cc:237] step    1/10 | train loss 4.000000 | "
    "lr "
    "1.00e-03 | (231.71 ms | 1105 tok/s | peak used:  2560 MB | peak reserved:  2592 MB, DP=1)\n"
    "E20250930 22:00:08.897649 139913778880512 main.cc:237] step    4/10 | train loss 1.000000 | "
    "lr "
    "1.00e-03 | (253.84 ms | 1009 tok/s)\n";
constexpr char kMegatronPrints[] =
    "  bf16 ............................................ True\n"
    " [2025-08-01 07:19:37] iteration        2/    5000 | consumed samples:          256 | elapsed "
    "time per iteration (ms): 19138.8 | learning rate: 1.000000E-03 | global batch size:   128 | "
    "lm "
    "loss: 2.000000E+00 | loss scale: 1.0 | grad norm: 0.500 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |\n"
    "[after 2 iterations] memory (MB) | allocated: 10850.67578125 | max allocated: 10850.7\n"
    " iteration        4/    5000 | learning rate: 1.000E-03 | lm loss: 1.000000E+00 | grad norm: "
    "0.250 | number of nan iterations:   0 |\n"
    "------------------------------------------------------------------------------\n"
    " validation loss at iteration 4 | lm loss value: 1.250000E+00 | lm loss PPL: 3.490343E+00 | \n"
    " validation loss at iteration 4 on validation set | lm loss value: 7.0E+00 | \n"
    " validation loss at iteration 4 on test set | lm loss value: 8.000000E+00 | \n";
constexpr char kTorchtitanPrints[] =
    "[rank0]:[titan] 2025-10-30 14:32:59,251 - root - INFO - Training starts at step 1\n"
    "[rank0]:[titan] 2025-10-30 14:32:59,251 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  "
    "4.0000 "
    " \x1b[38;2;180;60;0mgrad_norm:  1.0000  \x1b[38;2;54;234;195mmemory:  2.49GiB(3.14%)  "
    "\x1b[34mtps: 189,572  \x1b[36mtflops: 102.93  \x1b[35mmfu: 10.41%\x1b[39m\n"
    "[rank1]:[titan] 2025-10-30 14:32:59,251 - root - INFO - step:  1  loss: -1.0000  grad_norm:  "
    "1.0000  memory:  2.49GiB(3.14%)  tps: 189,572\n"
    "[titan] 2025-10-30 14:33:00,251 - root - INFO - step:  4  loss:  1.00000  memory:  "
    "2.49GiB(3.1%)"
    "  tps: 1,000\n"
    "[titan] - root - INFO - \x1b[33mvalidate step:  4  \x1b[32mloss:  1.2500  memory:  1.2GiB\n";

TEST_F(RunRecordsTest, ReadsLogsOfOtherTrainers) {
  struct Case {
    const char* text;
    const char* format;
    std::vector<int64_t> steps;
    std::optional<bool> bf16;
    bool has_evaluation, has_lr, has_norm, has_speed;
    double rounding;  // of the last loss
  };
  const Case cases[] = {
      {kMainLog, "llm.c's main.log", {1, 2, 3, 4}, {}, true, true, true, false, 5e-5},
      {kLlmcPrints, "a log of llm.c or InfiniTrain", {1, 2, 4}, true, true, true, true, true, 5e-7},
      {kInfiniTrain, "a log of llm.c or InfiniTrain", {1, 4}, {}, false, true, false, true, 5e-7},
      {kMegatronPrints, "a log of Megatron-LM", {2, 4}, true, true, true, true, false, 5e-7},
      {kTorchtitanPrints, "a log of torchtitan", {1, 4}, {}, true, false, false, true, 5e-6}};
  for (const Case& expected : cases) {
    Write("a log", expected.text);
    ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords((folder_ / "a log").string()));
    EXPECT_EQ(run.foreign, expected.format);
    std::vector<int64_t> steps;
    for (const auto& [step, record] : run.steps) {
      steps.push_back(step);
      EXPECT_NEAR(record.loss, 4.0 / static_cast<double>(step), 5e-5) << expected.format << step;
    }
    EXPECT_EQ(steps, expected.steps) << expected.format;
    EXPECT_EQ(run.bf16, expected.bf16) << expected.format;
    EXPECT_NEAR(run.Rounding(4, &StepRecord::loss), expected.rounding, 1e-12) << expected.format;
    EXPECT_EQ(run.evaluation_losses.contains(4), expected.has_evaluation) << expected.format;
    if (expected.has_evaluation) EXPECT_EQ(run.evaluation_losses.at(4), 1.25) << expected.format;
    const auto has = [&](double StepRecord::*number) {
      return run.Rounding(4, number) != kNotRecorded;
    };
    EXPECT_EQ(has(&StepRecord::lr), expected.has_lr) << expected.format;
    EXPECT_EQ(has(&StepRecord::grad_norm), expected.has_norm) << expected.format;
    EXPECT_EQ(has(&StepRecord::tokens_per_second), expected.has_speed) << expected.format;
  }
  Write("a log", kTorchtitanPrints);
  EXPECT_EQ(ReadRunRecords((folder_ / "a log").string())->steps.at(1).tokens_per_second, 189572);
  // The evaluation before the first step.
  Write("a log", kLlmcPrints);
  EXPECT_EQ(ReadRunRecords((folder_ / "a log").string())->evaluation_losses.at(0), 10.9901);
  // The train_gpt2 for CPUs, and a folder of llm.c.
  Write("main.log", "val loss 5.325529\nstep 0: train loss 5.356082 (took 7392.049000 ms)\n");
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords(folder_.string()));
  EXPECT_EQ(run.steps.at(1).loss, 5.356082);
  EXPECT_EQ(run.evaluation_losses.at(0), 5.325529);
}

TEST_F(RunRecordsTest, SaysWhatIsOddInALog) {
  // A cut last line, a repeated step, lines of another trainer, and a loss that is not a number.
  Write("log", std::string(" iteration 1/ 9 | lm loss: 2.000000E+00 |\n") + kMainLog +
                   " iteration 2/ 9 | lm loss: 1.500000E+00 |\n"
                   " iteration 1/ 9 | lm loss: 2.500000E+00 |\r\n"
                   " iteration 3/ 9 | grad norm: nan | number of nan iterations:   1 |\n"
                   " iteration 5/ 9 | number of skipped iterations:   1 |\n"
                   " 50%|#####     | \r iteration 6/ 9 | lm loss: 3.000000E+00 |\n"
                   " iteration 7/ 9 | lm loss: 1.0");
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords((folder_ / "log").string()));
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("its last line is incomplete"),
                                     HasSubstr("step 1 recorded again with another loss"),
                                     HasSubstr("7 lines are another trainer's"),
                                     HasSubstr("mean of the steps since")));
  EXPECT_EQ(run.steps.size(), 4);
  EXPECT_EQ(run.steps.at(1).loss, 2.5);
  EXPECT_EQ(run.steps.at(6).loss, 3);
  EXPECT_TRUE(std::isnan(run.steps.at(3).loss));
  EXPECT_EQ(run.Rounding(3, &StepRecord::loss), 0);
}

// An event with one scalar.
tensorboard::Event ScalarEvent(int64_t step, const std::string& tag, float number) {
  tensorboard::Event event;
  event.set_step(step);
  event.mutable_summary()->add_value()->set_tag(tag);
  event.mutable_summary()->mutable_value(0)->set_simple_value(number);
  return event;
}

TEST_F(RunRecordsTest, ReadsEventFilesOfPyTorch) {
  ASSERT_OK_AND_ASSIGN(const auto run,
                       ReadRunRecords("tools/compare_runs/testdata/summary_writer"));
  EXPECT_THAT(run.notes, IsEmpty());
  EXPECT_EQ(run.steps.size(), 8);
  for (const auto& [step, record] : run.steps) {
    const double expected = 4.0 / static_cast<double>(step) + (step < 5 ? 0.5 : 0);
    EXPECT_NEAR(record.loss, expected, 1e-6) << step;
    EXPECT_NEAR(record.grad_norm, 1.0 / static_cast<double>(step), 1e-6);
    EXPECT_NEAR(record.lr, 1e-3, 1e-9);
    EXPECT_EQ(record.tokens_per_second, 1000);
  }
  EXPECT_EQ(run.evaluation_losses, (std::map<int64_t, double>{{4, 1.25}, {8, 0.625}}));
  // A restart makes void what comes after it, the evaluation of step 4 not among it.
  EXPECT_EQ(ReadRunRecords("tools/compare_runs/testdata/summary_writer/"
                           "events.out.tfevents.1.host")
                ->steps.size(),
            6);
}

TEST_F(RunRecordsTest, FindsTheScalarsOfAnEventFile) {
  const auto read = [this](const std::vector<std::string>& tags) {
    std::string file;
    for (const std::string& tag : tags) file += EventRecord(ScalarEvent(1, tag, 2));
    Write("events.out.tfevents.1", file);
    return ReadRunRecords(folder_.string());
  };
  for (const char* tag : {"train/loss", "lm loss", "lm-loss-training/lm loss", "Loss/train", "loss",
                          "loss_metrics/global_avg_loss", "training/LM_loss"}) {
    const auto run = read({tag, "lm loss vs samples", "loss-scale", "val/ppl", "z_loss"});
    ASSERT_OK(run) << tag;
    EXPECT_EQ(run->steps.at(1).loss, 2) << tag;
    EXPECT_TRUE(run->evaluation_losses.empty()) << tag;
  }
  // A tag that is known wins; others must be the only one.
  EXPECT_THAT(read({"train/loss", "train/other_loss"})->notes, IsEmpty());
  EXPECT_THAT(read({"my_loss"})->notes, ElementsAre(HasSubstr("taken to be \"my_loss\"")));
  EXPECT_THAT(read({"loss", "lr/0", "lr/1"})->notes,
              ElementsAre(HasSubstr("learning rate, and no")));
  EXPECT_THAT(std::string(read({"a_loss", "b_loss"}).status().message()),
              HasSubstr("found \"a_loss\", \"b_loss\"; several tags"));
  EXPECT_TRUE(absl::IsInvalidArgument(read({"accuracy"}).status()));
  EXPECT_THAT(std::string(read({}).status().message()), HasSubstr("no scalars"));
  for (const char* tag : {"validation/loss", "lm loss validation", "eval/loss", "val_loss"}) {
    EXPECT_EQ(read({"loss", tag})->evaluation_losses.size(), 1) << tag;
  }
  // The run in the only folder below; of several, one is to be named.
  std::filesystem::create_directories(folder_ / "logs/a");
  std::filesystem::rename(folder_ / "events.out.tfevents.1", folder_ / "logs/a/tfevents");
  EXPECT_EQ(ReadRunRecords(folder_.string())->path, (folder_ / "logs/a").string());
  std::filesystem::create_directories(folder_ / "logs/b");
  std::filesystem::copy(folder_ / "logs/a/tfevents", folder_ / "logs/b");
  EXPECT_THAT(std::string(ReadRunRecords(folder_.string()).status().message()),
              HasSubstr("holds several runs of TensorBoard, name one: "));
}

TEST_F(RunRecordsTest, ReadsDamagedEventFiles) {
  std::string file;
  std::vector<size_t> ends;
  for (int64_t step = 1; step <= 3; ++step) {
    file += EventRecord(ScalarEvent(step, "loss", 2));
    ends.push_back(file.size());
  }
  const auto read = [this](const std::string& contents) {
    Write("tfevents", contents);
    return ReadRunRecords((folder_ / "tfevents").string());
  };
  const auto flipped = [&file](size_t at) {
    std::string copy = file;
    copy[at] = static_cast<char>(copy[at] ^ 1);
    return copy;
  };
  const auto cut = read(file.substr(0, file.size() - 1));
  EXPECT_EQ(cut->steps.size(), 2);
  EXPECT_THAT(cut->notes, ElementsAre("the last record of tfevents is incomplete and left out"));
  EXPECT_THAT(read(file + "abc")->notes, ElementsAre(HasSubstr("is incomplete")));
  const auto data = read(flipped(ends[0] + kEventHeaderBytes + 2));
  EXPECT_EQ(data->steps.size(), 2);
  EXPECT_THAT(data->notes, ElementsAre(HasSubstr("is damaged (its checksum is wrong)")));
  const auto header = read(flipped(ends[0] + 2));
  EXPECT_EQ(header->steps.size(), 1);
  EXPECT_THAT(header->notes, ElementsAre(HasSubstr("what follows is not read")));
  EXPECT_THAT(std::string(read(flipped(0)).status().message()), HasSubstr("damaged at byte 0"));
}

// Whatever the bytes are, they are records, which can be compared, or refused.
TEST_F(RunRecordsTest, ReadsAnyBytes) {
  std::mt19937_64 random(TestSeed());
  std::vector<std::string> seeds = {kMainLog,        kLlmcPrints,       kInfiniTrain,
                                    kMegatronPrints, kTorchtitanPrints, ""};
  for (const char* tag : {"train/loss", "lr", "val/loss", "grad_norm"}) {
    for (int64_t step = 1; step <= 3; ++step) {
      seeds.back() += EventRecord(ScalarEvent(step, tag, 2));
    }
  }
  seeds.push_back(
      "{\"kind\":\"step\",\"step\":1,\"loss\":3,\"lr\":null,\"loss_bits\":\"4008000000000000\"}\n"
      "{\"kind\":\"eval\",\"step\":1,\"eval_loss\":3}\n");
  int64_t accepted = 0;
  for (int i = 0; i < 600; ++i) {
    std::string text = seeds[random() % seeds.size()];
    if (random() % 4 == 0) text.insert(random() % text.size(), seeds[random() % seeds.size()]);
    for (uint64_t changes = random() % 8; changes > 0; --changes) {
      text[random() % text.size()] = random() % 2 == 0 ? static_cast<char>(random())
                                                       : "0123456789e.-|: \n\x1b["[random() % 20];
    }
    text.resize(random() % 2 == 0 ? text.size() : random() % (text.size() + 1));
    Write("any", text);
    const auto run = ReadRunRecords((folder_ / "any").string());
    if (!run.ok()) continue;
    ++accepted;
    EXPECT_FALSE(run->steps.empty() && run->evaluation_losses.empty());
    const RunComparison comparison = CompareRuns(*run, *run, {.exact = true});
    EXPECT_TRUE(comparison.equal() || !comparison.comparable());
    EXPECT_FALSE(ComparisonText(*run, *run, comparison, 20).empty());
    EXPECT_FALSE(ComparisonMarkdown(std::vector{*run, *run}, std::vector{comparison}).empty());
  }
  EXPECT_GT(accepted, 200);
}

TEST_F(RunRecordsTest, ReadsLargeFilesInLittleMemory) {
  const auto peak_bytes = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * int64_t{1024};
  };
  const int64_t before = peak_bytes();
  constexpr int64_t kFileBytes = int64_t{1} << 28;
  // One long line, and a record whose header promises two gigabytes.
  for (const bool is_event : {false, true}) {
    const auto path = folder_ / "large";
    std::string start = is_event ? EventRecord(ScalarEvent(1, "loss", 2)) : kMainLog;
    if (is_event) {
      std::string length = {0, 0, 0, 127, 0, 0, 0, 0};
      const uint32_t crc = std::rotr(Crc32c(length), 15) + 0xA282EAD8u;
      for (int i = 0; i < 4; ++i) length += static_cast<char>(crc >> (8 * i));
      start += length;
    }
    Write("large", start);
    std::filesystem::resize_file(path, kFileBytes);
    ASSERT_OK_AND_ASSIGN(const auto run, ReadRunRecords(path.string()));
    EXPECT_EQ(run.steps.size(), is_event ? 1 : 4);
  }
  EXPECT_LT(peak_bytes() - before, int64_t{64} << 20);
}

}  // namespace
}  // namespace tessera
