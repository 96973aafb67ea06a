#include "base/trace.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

nlohmann::json Events(const TraceRecorder& recorder) {
  return nlohmann::json::parse("[" + recorder.Json(7, 0) + "]");
}

TEST(TimeSpentTest, TheOutermostUseCounts) {
  TakeTimeSpent();
  {
    const TimeSpent saving(TimeUse::kSaving);
    const TimeSpent inside(TimeUse::kCommunication);
    absl::SleepFor(absl::Milliseconds(2));
  }
  { const TimeSpent waiting(TimeUse::kWaiting); }
  std::thread([] { const TimeSpent of_another_thread(TimeUse::kSaving); }).join();
  const auto [communication, waiting, saving] = TakeTimeSpent();
  EXPECT_EQ(communication, 0);
  EXPECT_GE(saving, 0.002);
  EXPECT_LT(waiting, saving);
  EXPECT_EQ(TakeTimeSpent(), (std::array<double, kTimeUseCount>{}));
}

TEST(TraceTest, SpansAreRecordedWhileTheRecorderIsActive) {
  const auto recorder = std::make_shared<TraceRecorder>();
  { const TraceSpan unbound("test", "unbound"); }
  EXPECT_EQ(ActiveTrace(), nullptr);
  std::optional<TraceSpan> open;
  const TraceThread thread(recorder, "training");
  { const TraceSpan idle("test", "idle"); }
  EXPECT_EQ(BoundTrace(), recorder);
  EXPECT_EQ(ActiveTrace(), nullptr);
  recorder->Start();
  EXPECT_EQ(ActiveTrace(), recorder);
  {
    TraceSpan outer("test", "outer \"1\"\xff");
    outer.Add("step", 12).Add("text", "a\n");
    const TraceSpan inner("test", "inner");
  }
  std::thread([&] {
    const TraceThread other(recorder, "training");  // taken: a second row of the name
    const TraceSpan span("test", "elsewhere");
  }).join();
  open.emplace("test", "open");
  recorder->Stop();
  open.reset();
  { const TraceSpan late("test", "late"); }
  EXPECT_EQ(recorder->dropped(), 0);

  std::string names;
  for (const nlohmann::json& event : Events(*recorder)) {
    if (event["ph"] == "M") continue;
    EXPECT_EQ(event["pid"], 7);
    EXPECT_EQ(event["tid"], event["name"] == "elsewhere" ? 2 : 1);
    EXPECT_GE(event["dur"], 0);
    EXPECT_EQ(event["args"].contains("unfinished"), event["name"] == "open");
    if (event["args"].contains("step")) {
      EXPECT_EQ(event["args"], (nlohmann::json{{"step", 12}, {"text", "a\n"}}));
    }
    names += event["name"].get<std::string>() + ";";
  }
  EXPECT_EQ(names, "outer \"1\"\xEF\xBF\xBD;inner;open;elsewhere;");
}

TEST(TraceTest, OperationsThatOverlapAreInRowsOfTheirOwn) {
  TraceRecorder recorder;
  recorder.Start();
  const auto add = [&](int64_t begin_ns, int64_t end_ns) {
    recorder.AddOperation(
        "dp", {.category = "test", .name = "all-reduce", .begin_ns = begin_ns, .end_ns = end_ns});
  };
  add(2000, 9000);
  add(1000, 5000);
  add(5000, 6000);
  recorder.Stop();
  std::string rows;
  for (const nlohmann::json& event : Events(recorder)) {
    if (event["ph"] == "X") rows += event["tid"].dump() + "@" + event["ts"].dump() + ";";
  }
  EXPECT_EQ(rows, "1000@1.0;1001@2.0;1000@5.0;");
}

TEST(TraceTest, WhatIsTooMuchIsCounted) {
  const auto recorder = std::make_shared<TraceRecorder>();
  recorder->Start();
  const TraceThread thread(recorder, "training");
  for (int64_t i = 0; i < TraceRecorder::kMaxEvents + 3; ++i) const TraceSpan span("test", "span");
  EXPECT_EQ(recorder->dropped(), 3);
}

}  // namespace
}  // namespace tessera
