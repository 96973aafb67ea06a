#include "trainer/metrics/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/file_calls.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "nlohmann/json.hpp"
#include "tests/worlds/power/power_loss.h"

namespace tessera {
namespace {

std::string Path(const std::string& name) { return testing::TempDir() + "/" + name; }

std::string Read(const std::string& path) { return ReadWholeFile(path).value_or(""); }

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<int64_t> Steps(const std::string& path) {
  std::vector<int64_t> steps;
  std::istringstream lines(Read(path));
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line)["step"].get<int64_t>());
  }
  return steps;
}

StepMetrics MetricsAtStep(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 1.0 / 3.0;
  metrics.lr = 3e-4;
  metrics.grad_norm = 0.1;
  metrics.consumed_samples = 8 * step;
  metrics.step_seconds = 0.5;
  metrics.tokens_per_second = 1024;
  metrics.peak_share = 0.75;
  return metrics;
}

std::unique_ptr<MetricsWriter> Open(const std::string& path, std::optional<int64_t> resumed) {
  return OrFail(MetricsWriter::Open(path, resumed));
}

using nlohmann::json;

// The record of these metrics. Read before Close(): a killed process leaves the same file behind.
template <typename Metrics>
json Recorded(const Metrics& metrics) {
  const std::string path = Path("record.jsonl");
  const auto writer = Open(path, std::nullopt);
  EXPECT_OK(writer->Write(metrics));
  return json::parse(Read(path));
}

TEST(MetricsWriterTest, RecordsCarryEveryBit) {
  json expected = {{"kind", "step"},      {"step", 1},
                   {"loss", 1.0 / 3.0},   {"loss_bits", "3fd5555555555555"},
                   {"lr", 3e-4},          {"grad_norm", 0.1},
                   {"skipped", false},    {"consumed_samples", 8},
                   {"step_seconds", 0.5}, {"tokens_per_second", 1024.0},
                   {"peak_share", 0.75}};
  EXPECT_EQ(Recorded(MetricsAtStep(1)), expected);
  // Several ranks.
  StepMetrics parallel = MetricsAtStep(1);
  parallel.pipeline_wait_share = 0.25;
  parallel.wire = {
      {"tp", "all-reduce", 30}, {"dp", "reduce-scatter", 500}, {"dp", "all-gather", 7}};
  expected["pipeline_wait_share"] = 0.25;
  expected["wire_bytes"] = 537;
  expected["wire"] = {{"tp", {{"all-reduce", 30}}},
                      {"dp", {{"reduce-scatter", 500}, {"all-gather", 7}}}};
  parallel.time = {.compute = 0.25, .communication = 0.125, .waiting = 0, .saving = 0.5};
  expected["time"] = {
      {"compute", 0.25}, {"communication", 0.125}, {"waiting", 0.0}, {"saving", 0.5}};
  EXPECT_EQ(Recorded(parallel), expected);
  StepMetrics linked = MetricsAtStep(1);
  linked.ledger = "ab";
  linked.ledger_settings = "cd";
  linked.first_sample = 4;
  const json link = Recorded(linked);
  EXPECT_EQ(link["ledger"], "ab");
  EXPECT_EQ(link["settings"], "cd");
  EXPECT_EQ(link["first_sample"], 4);
  EXPECT_EQ(
      Recorded(SaveRecord{.step = 7, .ledger = "ab", .state = "cd", .save = "ef"}),
      (json{{"kind", "save"}, {"step", 7}, {"ledger", "ab"}, {"state", "cd"}, {"save", "ef"}}));
  // JSON has no number for what is not finite. A curve of the training loss must not pick up an
  // evaluation's: its name is another.
  StepMetrics broken = MetricsAtStep(1);
  broken.loss = std::numeric_limits<double>::infinity();
  broken.grad_norm = std::nan("");
  broken.skipped = true;
  const json record = Recorded(broken);
  EXPECT_TRUE(record["loss"].is_null() && record["grad_norm"].is_null());
  EXPECT_EQ(record["loss_bits"], "7ff0000000000000");
  EXPECT_EQ(record["skipped"], true);
  EXPECT_EQ(
      Recorded(EvalMetrics{.step = 7, .loss = 2.5, .tokens = 64, .seconds = 0.25, .best = true}),
      (json{{"kind", "eval"},
            {"step", 7},
            {"eval_loss", 2.5},
            {"eval_loss_bits", "4004000000000000"},
            {"tokens", 64},
            {"seconds", 0.25},
            {"best", true}}));
}

TEST(MetricsWriterTest, NothingIsWrittenAfterAnError) {
  struct : FileCallInterceptor {
    int Sync(int /*fd*/, absl::FunctionRef<int()> /*call*/) override { return ENOSPC; }
    int Rename(absl::FunctionRef<int()> call) override { return call(); }
  } full_disk;
  const std::string path = Path("full.jsonl");
  const auto writer = Open(path, std::nullopt);
  ASSERT_OK(writer->Write(MetricsAtStep(1)));
  SetFileCallInterceptor(&full_disk);
  EXPECT_TRUE(absl::IsResourceExhausted(writer->Sync()));
  SetFileCallInterceptor(nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(writer->Write(MetricsAtStep(2))));
  EXPECT_TRUE(absl::IsResourceExhausted(writer->Sync()));
  EXPECT_TRUE(absl::IsResourceExhausted(writer->status()));
  EXPECT_EQ(Steps(path), std::vector<int64_t>{1});
}

TEST(MetricsWriterTest, ARunKeepsTheRecordsUpToTheStepThatItResumes) {
  const std::string first = "{ \"step\" : 1, \"mine\": [1, 2] }\n";  // kept as it is
  const std::string second = "{\"kind\":\"step\",\"step\":2}\n";
  const struct {
    std::optional<std::string> before;  // nullopt: no file
    std::optional<int64_t> resumed;
    std::string kept;
  } cases[] = {{first + second, std::nullopt, ""},
               {first + second, 1, first},
               {first + second, 2, first + second},
               {first + "{\"step\":2}", 2, first},  // the next record would be appended to it
               {std::nullopt, 40, ""}};
  const std::string path = Path("resume.jsonl");
  for (const auto& [before, resumed, kept] : cases) {
    std::filesystem::remove(path);
    if (before.has_value()) WriteFile(path, *before);
    const auto writer = Open(path, resumed);
    EXPECT_EQ(Read(path), kept);
    if (!resumed.has_value()) EXPECT_EQ(Read(path + ".before"), before);
    ASSERT_OK(writer->Write(MetricsAtStep(3)));
    EXPECT_EQ(Steps(path).back(), 3);
    EXPECT_TRUE(Read(path).starts_with(kept));
  }
}

TEST(MetricsWriterTest, TheLongestRecordsOfEarlierRunsAreKept) {
  const std::string path = Path("earlier.jsonl");
  WriteFile(path, "{\"step\":1}\n{\"step\":2}\n");
  std::vector<std::string> notes;
  const NoteSink note = [&](const std::string& text) { notes.push_back(text); };
  OrFail(MetricsWriter::Open(path, std::nullopt, note));
  WriteFile(path, "{\"step\":3}\n");
  OrFail(MetricsWriter::Open(path, std::nullopt, note));
  EXPECT_EQ(Steps(path + ".before"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(Read(path), "");
  EXPECT_EQ(notes, (std::vector<std::string>{"the earlier records are kept in " + path + ".before",
                                             "the earlier records of " + path +
                                                 " are deleted: there are longer ones in " + path +
                                                 ".before"}));
}

// The checkpoint is one that the run did not save itself.
TEST(MetricsWriterTest, RecordsOfAnotherRunAreKeptApart) {
  const std::string first = "{\"kind\":\"step\",\"step\":1,\"ledger\":\"a\"}\n",
                    second = "{\"kind\":\"step\",\"step\":2,\"ledger\":\"b\"}\n";
  const struct {
    std::string log;
    int64_t resumed;
    std::string ledger, kept, before;
    std::optional<int64_t> lost_steps = {};  // nullopt: unknown
  } cases[] = {{first + second, 2, "b", first + second, "", 0},
               {first + second, 1, "a", first, first + second, 1},
               {first + second, 1, "c", "", first + second},
               {first + second, 2, "c", "", first + second},
               {first, 2, "b", "", first},
               {first, 2, "", "", first},  // two that do not know their ledger are not one
               // A run that died before its first save.
               {second, 1, "a", "", second, 1},
               {second, 1, "", "", second, 1},
               {"{\"kind\":\"eval\",\"step\":1}\n" + second, 1, "a", "",
                "{\"kind\":\"eval\",\"step\":1}\n" + second, 1},
               {second, 0, "a", "", second}};
  const std::string path = Path("other.jsonl");
  for (const auto& [log, resumed, ledger, kept, before, lost_steps] : cases) {
    std::filesystem::remove(path + ".before");
    WriteFile(path, log);
    const auto writer = OrFail(MetricsWriter::Open(path, resumed, nullptr, &ledger));
    EXPECT_EQ(Read(path), kept);
    EXPECT_EQ(Read(path + ".before"), before);
    EXPECT_EQ(writer->continues(), !kept.empty());
    EXPECT_EQ(writer->lost().has_value(), lost_steps.has_value()) << log << resumed;
    EXPECT_EQ(writer->lost().value_or(ResumeMetrics()).lost_steps, lost_steps.value_or(0));
    EXPECT_EQ(writer->evaluated_step(), -1);
  }
}

// Wherever the process ends, the next one finds the records to compare with.
TEST(MetricsWriterTest, ARecordFileIsThereWhileEarlierRecordsAreKept) {
  const std::string kept = "{\"kind\":\"step\",\"step\":1,\"ledger\":\"a\"}\n";
  const std::string old = kept + "{\"kind\":\"step\",\"step\":2}\n";
  PowerLossScenario scenario;
  scenario.prepare = [&](const std::string& root) { WriteFile(root + "/metrics.jsonl", old); };
  scenario.run = [](const std::string& root) {
    const std::string ledger = "a";
    return MetricsWriter::Open(root + "/metrics.jsonl", 1, nullptr, &ledger).status();
  };
  scenario.check = [&](const FileImage& image, bool finished) -> std::string {
    const auto at = image.find("metrics.jsonl"), before = image.find("metrics.jsonl.before");
    if (at == image.end()) return "the file is gone";
    if (at->second == old && !finished) return "";
    return at->second == kept && before != image.end() && before->second == old
               ? ""
               : "it holds " + at->second;
  };
  EXPECT_EQ(CheckEverySync(scenario, testing::TempDir() + "/power_loss_other", nullptr), "");
}

TEST(MetricsWriterTest, ResumingSurvivesALossOfPowerAndNeedsEachSync) {
  const std::string kept = "{\"step\":1}\n", old = kept + "{\"step\":2}\n";
  PowerLossScenario scenario;
  scenario.prepare = [&](const std::string& root) { WriteFile(root + "/metrics.jsonl", old); };
  scenario.run = [](const std::string& root) {
    return MetricsWriter::Open(root + "/metrics.jsonl", 1).status();
  };
  scenario.check = [&](const FileImage& image, bool finished) -> std::string {
    const auto at = image.find("metrics.jsonl");
    if (at == image.end()) return "the file is gone";
    return at->second == kept || (at->second == old && !finished) ? "" : "it holds " + at->second;
  };
  std::vector<std::string> syncs;
  EXPECT_EQ(CheckEverySync(scenario, testing::TempDir() + "/power_loss", &syncs), "");
  EXPECT_EQ(syncs, std::vector<std::string>({"", "metrics.jsonl.tmp"}));
}

TEST(MetricsWriterTest, RecordsSurviveALossOfPowerFromTheSyncOn) {
  PowerLossScenario scenario;
  scenario.run = [](const std::string& root) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const auto writer,
                             MetricsWriter::Open(root + "/metrics.jsonl", std::nullopt));
    if (absl::Status status = writer->Write(MetricsAtStep(1)); !status.ok()) return status;
    return writer->Sync();
  };
  scenario.check = [](const FileImage& image, bool finished) -> std::string {
    const auto at = image.find("metrics.jsonl");
    if (!finished) return "";
    return at != image.end() && at->second.ends_with("}\n") ? "" : "the record is gone";
  };
  const std::string root = testing::TempDir() + "/power_loss_sync", sync = "metrics.jsonl";
  EXPECT_EQ(RunWithPowerLoss(scenario, root, nullptr, nullptr), "");
  EXPECT_NE(RunWithPowerLoss(scenario, root, &sync, nullptr), "");
}

TEST(MetricsWriterTest, WhatCannotBeOpenedIsNamed) {
  std::filesystem::create_directories(Path("folder.jsonl"));
  for (const std::string& path : {Path("folder.jsonl"), Path("no/such/metrics.jsonl")}) {
    for (const std::optional<int64_t> resumed :
         {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
      const absl::Status status = MetricsWriter::Open(path, resumed).status();
      EXPECT_FALSE(status.ok());
      EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
    }
  }
}

TEST(RateMeterTest, TurnsSecondsIntoRates) {
  RateMeter meter(
      {.total_steps = 100, .tokens_per_step = 1000, .flops_per_token = 1e6, .peak_flops = 4e9});
  StepMetrics metrics;
  metrics.step = 10;
  meter.Measure(0.5, &metrics);
  EXPECT_DOUBLE_EQ(metrics.step_seconds, 0.5);
  EXPECT_DOUBLE_EQ(metrics.tokens_per_second, 2000);
  EXPECT_DOUBLE_EQ(metrics.peak_share, 0.5);
  EXPECT_DOUBLE_EQ(metrics.eta_seconds, 45);
  // One slow step moves the estimate by a tenth of its surplus.
  metrics.step = 11;
  meter.Measure(1.5, &metrics);
  EXPECT_DOUBLE_EQ(metrics.eta_seconds, 0.6 * 89);
}

TEST(RateMeterTest, AStepThatBeatsThePeakRaisesIt) {
  RateMeter meter(
      {.total_steps = 100, .tokens_per_step = 1000, .flops_per_token = 1e6, .peak_flops = 1e9});
  StepMetrics metrics;
  metrics.step = 1;
  meter.Measure(0.5, &metrics);
  EXPECT_EQ(metrics.peak_share, 1);
  meter.Measure(1, &metrics);
  EXPECT_DOUBLE_EQ(metrics.peak_share, 0.5);
  meter.Measure(0.3, &metrics);
  EXPECT_EQ(metrics.peak_share, 1);
}

TEST(MetricsWriterTest, AppendingKeepsWhatIsThere) {
  const std::string path = Path("append.jsonl");
  const std::string before = "{\"kind\":\"step\",\"step\":9}\n";
  WriteFile(path, before + "{\"kind\":\"st");
  for (const int64_t step : {3, 4}) {
    ASSERT_OK_AND_ASSIGN(auto writer, MetricsWriter::Append(path));
    ASSERT_OK(writer->Write(EvalMetrics{.step = step, .loss = 2}));
  }
  const std::string after = Read(path);
  EXPECT_EQ(after.substr(0, before.size()), before);
  EXPECT_EQ(Steps(path), (std::vector<int64_t>{9, 3, 4}));
}

TEST(RateMeterTest, AnUnknownPeakGivesNoShare) {
  RateMeter meter({.total_steps = 1, .tokens_per_step = 1, .flops_per_token = 1});
  StepMetrics metrics;
  meter.Measure(0, &metrics);
  EXPECT_EQ(metrics.peak_share, 0);
  EXPECT_EQ(metrics.tokens_per_second, 0);
}

using Notes = std::vector<std::string>;

std::string Step(int64_t step, const std::string& more = "") {
  return "{\"kind\":\"step\",\"step\":" + std::to_string(step) + more + "}\n";
}

std::string Steps(int64_t first, int64_t last) {
  std::string log;
  for (int64_t step = first; step <= last; ++step) log += Step(step);
  return log;
}

TEST(KeptRecordsTest, AnUndamagedLogIsKeptWithoutAWord) {
  const std::string eval = "{\"kind\":\"eval\",\"step\":2}\n";
  const std::string before = Steps(1, 2) + eval + Steps(3, 5);
  for (const std::string end : {"", "{\"kind\":\"step\",\"step\":4", "{\"step\":3}", "{"}) {
    const KeptRecords kept = KeepRecords(before + end, 3);
    EXPECT_EQ(kept.text, Steps(1, 2) + eval + Steps(3, 3));
    EXPECT_EQ(kept.notes, Notes());
  }
  EXPECT_EQ(KeepRecords("", 3).text, "");
  EXPECT_EQ(KeepRecords("", 3).notes, Notes());
}

// A run may have died twice after the same checkpoint: each lost step counts once.
TEST(KeptRecordsTest, WhatALostStepHasTakenIsCounted) {
  const std::string half = R"(,"step_seconds":0.5)";
  const std::string log = Step(1, half) + Step(2, half) + Step(3, half) + Step(3, half) + Step(4);
  const KeptRecords kept = KeepRecords(log + "{\"kind\":\"eval\",\"step\":4}\n", 1);
  EXPECT_EQ(kept.lost_steps, 3);
  EXPECT_EQ(kept.lost_seconds, 1.0);
  EXPECT_EQ(KeepRecords(log, 4).lost_steps, 0);
}

TEST(KeptRecordsTest, LinesThatAreNoRecordsAreNamedAndDropped) {
  for (const std::string line : {"hello", "[1]", "{\"loss\":1}", "{\"step\":\"1\"}", "", "\xFF\xFE",
                                 "{\"kind\":\"step\",\"step\":3,\"lo"}) {
    const KeptRecords kept = KeepRecords(Steps(1, 2) + line + "\n" + Steps(4, 6), 5);
    EXPECT_EQ(kept.text, Steps(1, 2) + Steps(4, 5)) << line;
    EXPECT_EQ(kept.notes, (Notes{"line 3 is damaged and dropped: not a record of a step",
                                 "there is no record of step 3; the training is not affected"}))
        << line;
  }
}

TEST(KeptRecordsTest, DamageAfterTheResumedStepIsNamedToo) {
  const KeptRecords kept = KeepRecords(Steps(1, 2) + "x\n" + Steps(4, 4) + "y\n", 2);
  EXPECT_EQ(kept.text, Steps(1, 2));
  EXPECT_EQ(kept.notes, Notes{"lines 3, 5 are damaged and dropped: not a record of a step"});
}

TEST(KeptRecordsTest, ABlockOfZerosCostsTheRecordsThatItCovers) {
  const std::string whole = Steps(1, 40);
  for (size_t first = 0; first < whole.size(); first += 37) {
    std::string log = whole;
    const size_t size = std::min<size_t>(200, log.size() - first);
    log.replace(first, size, size, '\0');
    const KeptRecords kept = KeepRecords(log, 40);
    EXPECT_EQ(kept.text.find('\0'), std::string::npos);
    // Every line outside the block is kept.
    const size_t before = first == 0 ? 0 : whole.rfind('\n', first - 1) + 1;
    const size_t after = first + size == whole.size() || whole[first + size - 1] == '\n'
                             ? first + size
                             : whole.find('\n', first + size - 1) + 1;
    EXPECT_EQ(kept.text, whole.substr(0, before) + whole.substr(after)) << first;
    EXPECT_FALSE(kept.notes.empty()) << first;
  }
  EXPECT_EQ(KeepRecords(std::string(4096, '\0'), 40).text, "");
}

TEST(KeptRecordsTest, RecordsThatATruncatedLogHasLostAreNamed) {
  EXPECT_EQ(KeepRecords(Steps(1, 7), 9).notes,
            Notes{"there is no record of steps 8 to 9; the training is not affected"});
  // An older gap was reported when it was found.
  EXPECT_EQ(KeepRecords(Steps(1, 3) + Steps(6, 9), 9).notes, Notes());
  // A run that switched to this folder at step 6.
  EXPECT_EQ(KeepRecords(Steps(6, 9), 9).notes, Notes());
}

TEST(KeptRecordsTest, OfTwoRecordsOfAStepTheLastIsKept) {
  const std::string eval = "{\"kind\":\"eval\",\"step\":3}\n";
  const KeptRecords kept = KeepRecords(
      Steps(1, 2) + Step(3, ",\"loss\":1") + eval + Step(3, ",\"loss\":2") + Steps(4, 4), 4);
  EXPECT_EQ(kept.text, Steps(1, 2) + eval + Step(3, ",\"loss\":2") + Steps(4, 4));
  EXPECT_EQ(kept.notes, Notes{"step 3 is recorded more than once: the last record is kept"});
}

}  // namespace
}  // namespace tessera
