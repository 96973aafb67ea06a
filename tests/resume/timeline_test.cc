// Timelines of steps (--trace-steps) and the split of their time, as a user finds them.

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/resume/resume_run.h"
#include "tests/support/command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kEightRanks[] =
    "parallel { data_parallel_size: 2 tensor_model_parallel_size: 2 "
    "pipeline_model_parallel_size: 2 } checkpoint { async_save: true }";
constexpr int kRanks = 8, kStages = 2, kMicroBatches = 2;  // of a data rank

struct Span {
  std::string name;
  double begin = 0, end = 0;
  json args;
};

// A file's spans by process and row.
struct Rows {
  json file;
  std::map<std::pair<int, int>, std::vector<Span>> spans;
  std::map<std::pair<int, int>, std::string> names;
  std::set<int> processes;

  explicit Rows(const std::string& text) : file(json::parse(text)) {
    for (const json& event : file["traceEvents"]) {
      const int process = event["pid"];
      if (event["ph"] == "X") {
        const double begin = event["ts"], duration = event["dur"];
        spans[{process, event["tid"]}].push_back(
            {event["name"], begin, begin + duration, event["args"]});
      } else if (event["name"] == "thread_name") {
        names[{process, event["tid"]}] = event["args"]["name"];
      } else if (event["name"] == "process_name") {
        processes.insert(process);
      }
    }
  }
  std::vector<Span> Named(int process, const std::string& name) const {
    std::vector<Span> found;
    for (const auto& [row, of_row] : spans) {
      for (const Span& span : of_row) {
        if (row.first == process && span.name == name) found.push_back(span);
      }
    }
    return found;
  }
};

class TimelineTest : public ResumeTest {
 protected:
  TrainConfig Short(const std::string& run, const std::string& output = "") const {
    TrainConfig config = Config({kGpt2, kEightRanks,
                                 "training { train_iters: 6 global_batch_size: 8 threads: 1 } "
                                 "optimizer { lr_warmup_iters: 1 }",
                                 absl::StrCat("output { ", output, " }")},
                                run);
    config.mutable_checkpoint()->set_save_interval(3);
    return config;
  }
  std::vector<std::string> Files(const std::string& run) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(RunDir(run))) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, "trace")) names.push_back(name);
    }
    return names;
  }
};

TEST_F(TimelineTest, ShowsWhatEachRankDoesInTheStepsThatAreWanted) {
  ASSERT_OK(Train(Short("plain")));
  EXPECT_THAT(Files("plain"), ::testing::IsEmpty());
  ASSERT_OK(Train(Short("traced", "trace_steps: \"3-6\"")).status());
  EXPECT_EQ(Losses("plain"), Losses("traced"));
  ASSERT_THAT(Files("traced"), ::testing::ElementsAre("trace-3-6.json"));

  const Rows rows(ReadFile(RunDir("traced") / "trace-3-6.json"));
  EXPECT_EQ(rows.processes.size(), size_t{kRanks});
  EXPECT_EQ(rows.file["otherData"]["dropped_events"], 0);
  ASSERT_EQ(rows.file["otherData"]["clocks"].size(), size_t{kRanks});
  double uncertainty = 0.002;
  for (const json& clock : rows.file["otherData"]["clocks"]) {
    EXPECT_EQ(clock["offset_us"], 0) << "threads of one process have one clock";
    uncertainty = std::max(uncertainty, clock["uncertainty_us"].get<double>());
  }
  for (const auto& [row, unsorted] : rows.spans) {
    EXPECT_EQ(rows.names.count(row), 1u);
    std::vector<Span> spans = unsorted;
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return std::pair(a.begin, -a.end) < std::pair(b.begin, -b.end);
    });
    std::vector<const Span*> open;
    for (const Span& span : spans) {
      while (!open.empty() && open.back()->end <= span.begin + 0.0015) open.pop_back();
      // Times are rounded to nanoseconds.
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back()->end + 0.0015)
            << span.name << " overlaps " << open.back()->name << " in " << rows.names.at(row);
      }
      open.push_back(&span);
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const char* name : {"optimizer", "gradient norm", "gradient reduction", "sum of losses",
                             "layer forward", "layer backward", "wait", "save", "write"}) {
      EXPECT_FALSE(rows.Named(rank, name).empty()) << name << " of rank " << rank;
    }
    EXPECT_EQ(rows.Named(rank, "step").size(), 4u);
    EXPECT_EQ(rows.Named(rank, "evaluation").size(), 1u);
    for (const char* direction : {"forward", "backward"}) {
      std::map<int64_t, int> slots;
      for (const Span& slot : rows.Named(rank, direction)) {
        ++slots[slot.args["micro_batch"].get<int64_t>()];
        EXPECT_EQ(slot.args["stage"], rank / (kRanks / kStages));
      }
      EXPECT_EQ(slots.size(), size_t{kMicroBatches}) << direction;
      for (const auto& [micro_batch, count] : slots) EXPECT_EQ(count, 4) << micro_batch;
    }
  }
  EXPECT_FALSE(rows.Named(0, "commit").empty());
  EXPECT_FALSE(rows.Named(0, "read samples").empty());

  // No rank leaves an all-reduce before each has entered it.
  std::map<std::tuple<std::string, int, int>, std::vector<Span>> operations;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const char* axis : {"tp", "dp", "world"}) {
      for (const Span& span : rows.Named(rank, absl::StrCat("all-reduce ", axis))) {
        EXPECT_GT(span.args["bytes"], 0);
        operations[{axis, span.args["first_rank"], span.args["number"]}].push_back(span);
      }
    }
  }
  int compared = 0;
  for (const auto& [operation, spans] : operations) {
    if (spans.size() == 1) continue;  // the others began it before, or ended it after, the range
    const auto [last_begin, first_end] =
        std::pair(std::max_element(spans.begin(), spans.end(),
                                   [](const Span& a, const Span& b) { return a.begin < b.begin; })
                      ->begin,
                  std::min_element(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
                    return a.end < b.end;
                  })->end);
    EXPECT_LE(last_begin, first_end + uncertainty) << std::get<0>(operation);
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST_F(TimelineTest, EachStepSaysWhereItsTimeWent) {
  ASSERT_OK(Train(Short("run")));
  std::ifstream file(RunDir("run") / "metrics.jsonl");
  int steps = 0;
  double saving = 0;
  for (std::string line; std::getline(file, line);) {
    const json record = json::parse(line);
    if (record["kind"] != "step") continue;
    ++steps;
    const json& time = record["time"];
    ASSERT_EQ(time.size(), 4u) << line;
    EXPECT_GT(time["compute"], 0) << line;
    EXPECT_GT(time["communication"], 0) << line;
    EXPECT_GT(time["waiting"], 0) << line;
    saving += time["saving"].get<double>();
  }
  EXPECT_EQ(steps, 6);
  EXPECT_GT(saving, 0);  // in steps beside a save
}

// Every rank ends with an error right after its part, with which it would end the others' calls.
TEST_F(TimelineTest, ARunThatDivergesHasATimelineOfItsLastSteps) {
  TrainConfig config = Short("run", "trace_steps: \"1-6\"");
  config.mutable_optimizer()->set_lr(1e30);
  EXPECT_THAT(std::string(Train(config).status().message()), HasSubstr("training has diverged"));
  ASSERT_THAT(Files("run"), ::testing::ElementsAre("trace-1-6.json"));
  const Rows rows(ReadFile(RunDir("run") / "trace-1-6.json"));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(rows.Named(rank, "step").size(), 6u);
}

// With processes.
class TimelineCommandTest : public CommandTest {
 protected:
  Words FourRanks(const std::string& run, const std::string& steps, int train_iters = 8) const {
    return Mpirun(4, Saving(run, train_iters,
                            {"--data-parallel-size=2", "--pipeline-model-parallel-size=2",
                             "--global-batch-size=8", "--trace-steps=" + steps}));
  }
};

TEST_F(TimelineCommandTest, WhatWasRecordedUntilTheEndIsWritten) {
  const Result result = MustRun(FourRanks("run", "7-1000"));
  EXPECT_THAT(result.out, HasSubstr("timeline of steps 7 to 8: trace-7-8.json"));
  const Rows rows(ReadFile(RunDir("run") / "trace-7-8.json"));
  EXPECT_EQ(rows.processes.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(rows.Named(rank, "step").size(), 2u);
}

TEST_F(TimelineCommandTest, ClocksThatDifferAreAligned) {
  // As on a machine that was started a thousand seconds before.
  const Words elsewhere = {"unshare",     "--user", "--map-root-user", "--time", "--fork",
                           "--monotonic", "1000"};
  if (Run(Joined({"/usr/bin/env"}, Joined(elsewhere, {"true"}))).exit_code != 0) {
    GTEST_SKIP() << "no clock of its own for a process (needs: time_namespaces)";
  }
  MustRun(
      MpirunWithUnlikeRanks(elsewhere, Saving("run", 6,
                                              {"--data-parallel-size=2", "--global-batch-size=8",
                                               "--save-interval=100", "--trace-steps=3-5"})));
  const Rows rows(ReadFile(RunDir("run") / "trace-3-5.json"));
  const json clock = rows.file["otherData"]["clocks"][1];
  const double uncertainty = clock["uncertainty_us"];
  EXPECT_NEAR(clock["offset_us"].get<double>(), -1e9, uncertainty + 0.002);
  const std::vector<Span> here = rows.Named(0, "all-reduce dp");
  const std::vector<Span> there = rows.Named(1, "all-reduce dp");
  ASSERT_FALSE(here.empty());
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(here[i].args["number"], there[i].args["number"]);
    EXPECT_LE(here[i].begin, there[i].end + uncertainty + 0.002);
    EXPECT_LE(there[i].begin, here[i].end + uncertainty + 0.002);
  }
}

TEST_F(TimelineCommandTest, AFileThatCannotBeWrittenIsANote) {
  fs::create_directories(RunDir("run"));
  // A folder has the name.
  fs::create_directories(RunDir("run") / "trace-3-4.json" / "x");
  const Result result = MustRun(FourRanks("run", "3-4"));
  EXPECT_THAT(result.out, HasSubstr("the timeline of steps 3 to 4 is not written: "));
  EXPECT_EQ(Losses("run").size(), 8u);
}

TEST_F(TimelineCommandTest, ARankThatDiesTakesTheTimelineAloneWithIt) {
  const Process process(FourRanks("run", "2-1000000", 1000000), root_);
  EXPECT_TRUE(process.WaitUntil([&] { return RecordCount("run") >= 4; }));
  ASSERT_EQ(kill(FindRank(2), SIGKILL), 0);
  ASSERT_NE(process.Wait().exit_code, 0);
  for (const auto& entry : fs::directory_iterator(RunDir("run"))) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("trace-")) << entry;
  }
  const auto steps = static_cast<int>(RecordCount("run")) + 4;
  MustRun(FourRanks("run", "2-1000000", steps));
  EXPECT_EQ(Losses("run").size(), static_cast<size_t>(steps));
}

}  // namespace
}  // namespace tessera
