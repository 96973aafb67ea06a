#include "trainer/report/report.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/metrics.h"
#include "trainer/report/run_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ReportTest : public testing::Test {
 protected:
  ReportTest() { fs::create_directories(run_); }
  ~ReportTest() override { fs::remove_all(run_); }

  void Write(const std::string& name, std::string_view text) {
    std::ofstream(run_ / name, std::ios::binary) << text;
  }

  // As the trainer writes them; a step's loss is its number.
  void WriteSteps(int64_t count) {
    ASSERT_OK_AND_ASSIGN(const auto writer,
                         MetricsWriter::Open((run_ / "metrics.jsonl").string(), std::nullopt));
    for (int64_t step = 1; step <= count; ++step) {
      StepMetrics metrics{.step = step, .loss = static_cast<double>(step), .grad_norm = 1};
      metrics.ledger = absl::StrCat("head", step);
      metrics.skipped = step == 2;
      metrics.step_seconds = 0.5;
      metrics.tokens_per_second = static_cast<double>(100 * step);
      metrics.wire = {{"dp", "all-gather", 10}, {"dp", "reduce-scatter", 20}, {"tp", "send", step}};
      if (Change != nullptr) Change(metrics);
      ASSERT_OK(writer->Write(metrics));
    }
    ASSERT_OK(writer->Write(EvalMetrics{.step = count, .loss = 2.5}));
  }

  Json Read(const RunDataLimits& limits = {}) const {
    return OrFail(ReadRunData(run_.string(), limits));
  }

  const fs::path run_ = fs::path(testing::TempDir()) / "report" / "my run";
  void (*Change)(StepMetrics&) = nullptr;
};

TEST_F(ReportTest, TakesWhatTheTrainerRecords) {
  WriteSteps(4);
  const auto saves = MetricsWriter::Open((run_ / "saves.jsonl").string(), std::nullopt);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK((*saves)->Write(SaveRecord{.step = 3, .ledger = "a", .state = "b", .save = "c"}));
  }
  const Json run = Read();
  EXPECT_EQ(run["name"], "my run");
  EXPECT_EQ(run["steps"], 4);
  EXPECT_EQ(run["skipped"], 1);
  EXPECT_EQ(run["seconds"], 2.0);
  EXPECT_EQ(run["mean_step_seconds"], 0.5);
  EXPECT_EQ(run["tokens_per_second"], 250);
  EXPECT_EQ(run["columns"]["step"], Json({1, 2, 3, 4}));
  EXPECT_EQ(run["columns"]["loss"], Json({1, 2, 3, 4}));
  EXPECT_EQ(run["columns"]["wire_bytes"], Json({31, 32, 33, 34}));
  EXPECT_FALSE(run["columns"].contains("memory_bytes"));
  EXPECT_EQ(run["eval"], Json({{"step", {4}}, {"loss", {2.5}}}));
  ASSERT_EQ(run["wire"].size(), 3);
  EXPECT_EQ(run["wire"][2], Json({{"axis", "tp"}, {"operation", "send"}, {"bytes", 2.5}}));
  EXPECT_EQ(run["ledger"], Json({{"step", 4}, {"head", "head4"}}));
  ASSERT_EQ(run["saves"].size(), 1);
  EXPECT_EQ(run["saves"][0]["save"], "c");
  EXPECT_EQ(run["time"], Json::object());
  EXPECT_EQ(run["notes"], Json::array());
}

TEST_F(ReportTest, TimeMemoryAndEvents) {
  Write("metrics.jsonl",
        R"({"kind":"step","step":1,"memory_bytes":7,"time":{"compute":1,"waiting":0.5}}
{"kind":"step","step":2,"memory_bytes":[3,5],"time":{"compute":2,"saving":3}}
)");
  Write("events.jsonl",
        absl::StrCat(R"({"kind":"event","event":"start","step":0,"time":5,"topology":"dp2",)"
                     R"("parameters":9,"ranks":[{"rank":0,"weights":4},7]})"
                     "\n"
                     R"({"kind":"event","event":"saved","step":1,"seconds":0.7,)"
                     R"("ranks":[{"rank":0,"writing":0.6,"seconds":0.7}]})"
                     "\n"
                     R"({"kind":"event","event":"saved","step":2,"seconds":0.5,"bytes":8,)"
                     R"("ranks":[{"rank":0,"copying":0.1,"writing":0.3,"seconds":0.5},7],)"
                     R"("directory":")",
                     run_.string(), R"(/checkpoints/step-2","text":"saved in )", run_.string(),
                     R"(/checkpoints"})"
                     "\n"
                     R"({"kind":"event","event":"sample","step":2,"prompt":"a","text":"ab"})"
                     "\n"));
  const Json run = Read();
  EXPECT_EQ(run["columns"]["memory_bytes"], Json({7, 8}));
  EXPECT_EQ(run["time"], Json({{"first", {1, 2}},
                               {"last", {1, 2}},
                               {"compute", {1, 2}},
                               {"communication", {0, 0}},
                               {"waiting", {0.5, 0}},
                               {"saving", {0, 3}}}));
  ASSERT_EQ(run["events"].size(), 3);
  EXPECT_EQ(run["latest"]["slowest_save"]["step"], 1);
  EXPECT_EQ(run["latest"]["save"], Json({{"step", 2},
                                         {"seconds", 0.5},
                                         {"ranks",
                                          {{{"rank", 0},
                                            {"planning", 0},
                                            {"copying", 0.1},
                                            {"writing", 0.3},
                                            {"syncing", 0},
                                            {"seconds", 0.5}}}}}));
  EXPECT_EQ(
      run["latest"]["ranks"],
      Json(
          {{{"rank", 0}, {"weights", 4}, {"gradients", 0}, {"optimizer", 0}, {"activations", 0}}}));
  EXPECT_EQ(run["events"][2]["directory"], "step-2");
  EXPECT_EQ(run["events"][2]["text"], "saved in my run/checkpoints");
  EXPECT_EQ(run["samples"], Json({{{"step", 2}, {"prompt", "a"}, {"text", "ab"}}}));
}

TEST_F(ReportTest, LeavesOutWhatIsDamaged) {
  Write(
      "metrics.jsonl",
      "{\"kind\":\"step\",\"step\":1,\"loss\":3}\n"
      "not a record\n\n[1]\n{\"kind\":7}\n{\"kind\":\"step\",\"step\":\"1\"}\n"
      "{\"kind\":\"step\",\"step\":2,\"loss\":\"high\",\"wire\":{\"dp\":3,\"tp\":{\"send\":{}}}}\n"
      "{\"kind\":\"step\",\"step\":2,\"loss\":2}\n"
      "{\"kind\":\"step\",\"step\":3,\"lo");
  Write("events.jsonl",
        "{\"kind\":\"event\",\"event\":[]}\n{\"kind\":\"event\",\"event\":\"end\","
        "\"step\":[],\"ranks\":{},\"text\":4}\n");
  const Json run = Read();
  EXPECT_EQ(run["columns"]["step"], Json({1, 2}));
  EXPECT_EQ(run["columns"]["loss"], Json({3, 2})) << "the later record of a step counts";
  EXPECT_EQ(run["events"].size(), 1);
  // The incomplete last line is what a killed process leaves.
  EXPECT_EQ(run["notes"], Json({"metrics.jsonl: 5 damaged lines are left out",
                                "events.jsonl: 1 damaged line is left out"}));
}

TEST_F(ReportTest, AFileMayBeOneLongLine) {
  Write("metrics.jsonl", std::string(3 << 20, '\0') + "\n{\"kind\":\"step\",\"step\":1}\n" +
                             std::string(3 << 20, '['));
  const Json run = Read();
  EXPECT_EQ(run["steps"], 1);
  EXPECT_EQ(run["notes"], Json({"metrics.jsonl: 2 damaged lines are left out"}));
}

TEST_F(ReportTest, SaysWhichFileCannotBeRead) {
  Write("config.textproto", "");
  fs::create_symlink("/proc/self/mem", run_ / "metrics.jsonl");  // has nothing at its beginning
  EXPECT_EQ(Read()["notes"], Json({"metrics.jsonl cannot be read to its end"}));
}

TEST_F(ReportTest, ThinsLongRuns) {
  Change = [](StepMetrics& metrics) {
    if (metrics.step == 7777) metrics.loss = 1e6;
    if (metrics.step == 3333) metrics.loss = std::numeric_limits<double>::quiet_NaN();
    if (metrics.step == 5555) metrics.grad_norm = 1e-6;
  };
  WriteSteps(10000);
  const Json run = Read({.points = 600});
  const auto steps = run["columns"]["step"].get<std::vector<int64_t>>();
  EXPECT_LE(steps.size(), 602);
  EXPECT_GE(steps.size(), 100);
  EXPECT_TRUE(std::ranges::is_sorted(steps));
  for (const int64_t kept : {1, 3333, 5555, 7777, 10000}) {
    EXPECT_TRUE(std::ranges::binary_search(steps, kept)) << kept;
  }
  EXPECT_EQ(run["steps"], 10000);
  EXPECT_EQ(run["notes"].size(), 1);
  const Json part = Read({.metrics_bytes = 1 << 20});
  EXPECT_GT(part["read_every"], 1);
  EXPECT_EQ(
      part["seconds"].get<double>(),
      0.5 * static_cast<double>(part["steps"].get<int64_t>() * part["read_every"].get<int64_t>()))
      << "the time of all steps";
  const int64_t every = part["read_every"].get<int64_t>();
  EXPECT_EQ(part["steps"], (10000 + every - 1) / every + (9999 % every == 0 ? 0 : 1));
  EXPECT_EQ(part["columns"]["step"].back(), 10000) << "the last one is always read";
  EXPECT_EQ(part["ledger"]["step"], 10000);
}

TEST_F(ReportTest, LongListsAndTextsAreCut) {
  std::string events;
  for (int i = 0; i < 50; ++i) {
    absl::StrAppend(&events, "{\"kind\":\"event\",\"event\":\"saved\",\"step\":", i,
                    ",\"text\":\"\u00fc\u00fc\"}\n");
  }
  Write("events.jsonl", events);
  Write("config.textproto", "model { }");
  const Json run = Read({.events = 20, .text_bytes = 3, .settings_bytes = 5});
  ASSERT_EQ(run["events"].size(), 20);
  EXPECT_EQ(run["events"][1]["step"], 1);
  EXPECT_EQ(run["events"][2]["step"], 32);
  EXPECT_EQ(run["events"][19]["text"], "\u00fc...");
  EXPECT_EQ(run["settings"], "model");
  EXPECT_EQ(run["notes"], Json({"30 of 50 events are left out"}));
}

TEST_F(ReportTest, WhatResumesLostIsKnownOfEventsThatAreLeftOut) {
  std::string events;
  for (int i = 0; i < 50; ++i) {
    absl::StrAppend(&events, "{\"kind\":\"event\",\"event\":\"saved\",\"step\":", i, "}\n");
    if (i != 9 && i != 19) continue;
    absl::StrAppend(&events, R"({"kind":"event","event":"resume","step":5,"topology":"dp)", i,
                    R"(","lost_steps":3,"lost_seconds":1.5,"down_seconds":)", i,
                    R"(,"ranks":[{"rank":0,"weights":)", i, "}]}\n");
  }
  Write("events.jsonl", events);
  const Json run = Read({.events = 10});
  ASSERT_EQ(run["events"].size(), 10);
  EXPECT_EQ(run["resumes"],
            Json({{"count", 2}, {"lost_steps", 6}, {"lost_seconds", 3}, {"down_seconds", 28}}));
  EXPECT_EQ(run["latest"]["topology"], "dp19");
  EXPECT_EQ(run["latest"]["ranks"][0]["weights"], 19);
}

TEST_F(ReportTest, PlacesOfRunsAreHidden) {
  const std::string parent = run_.parent_path().string();
  Write("config.textproto",
        absl::StrCat("output {\n  run_dir: \"/elsewhere/b/old\"\n}\ndata {\n  a: \"", parent,
                     "/data\"\n  b: \"/x", parent, "/y\"\n  c: \"/elsewhere/b/z\"\n}\n"));
  Write("events.jsonl",
        R"({"kind":"event","event":"end","step":1,"text":"see /elsewhere/b/old, ."})"
        "\n");
  const Json run = Read();
  EXPECT_EQ(run["settings"],
            absl::StrCat("output {\n  run_dir: \"old\"\n}\ndata {\n  a: \"data\"\n  b: \"/x",
                         parent, "/y\"\n  c: \"z\"\n}\n"));
  EXPECT_EQ(run["events"][0]["text"], "see old, .");
}

TEST_F(ReportTest, NeedsAFolderWithRecords) {
  EXPECT_TRUE(absl::IsNotFound(ReadRunData(run_.string()).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadRunData("/nowhere").status()));
  EXPECT_OK(WriteReport(run_.string()));
  EXPECT_OK(WriteReport(""));
  EXPECT_TRUE(fs::is_empty(run_)) << "nothing is said of a run without records";
  Write("config.textproto", "");
  EXPECT_OK(WriteReport(run_.string()));
  EXPECT_TRUE(fs::exists(run_ / kReportFile));
}

TEST_F(ReportTest, RunsOfOneNameAreToldApart) {
  Write("config.textproto", "");
  ASSERT_OK_AND_ASSIGN(const std::string page, MakeReport({run_.string(), run_.string() + "/"}));
  EXPECT_NE(page.find("\"my run (2)\""), page.npos);
  EXPECT_EQ(page.find(run_.string()), page.npos);
}

}  // namespace
}  // namespace tessera
