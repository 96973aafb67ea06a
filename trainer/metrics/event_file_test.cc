#include "trainer/metrics/event_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/testing.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/metrics.h"

namespace tessera {
namespace {

using tensorboard::Event;

std::string BytesOf(const std::string& path) { return OrFail(ReadWholeFile(path)); }

// What the format says, without the code that writes it.
std::vector<Event> EventsOf(const std::string& folder) {
  const std::string file = BytesOf(folder + "/" + kEventFileName);
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    std::memcpy(&value, file.data() + at, sizeof(value));
    return value;
  };
  const auto masked = [](std::string_view data) {
    const uint32_t crc = Crc32c(data);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  std::vector<Event> events;
  for (size_t at = 0, size = 0; at < file.size(); at += 16 + size) {
    size = word(at);
    EXPECT_EQ(word(at + 4), 0);
    EXPECT_EQ(word(at + 8), masked(std::string_view(file).substr(at, 8)));
    EXPECT_EQ(word(at + 12 + size), masked(std::string_view(file).substr(at + 12, size)));
    EXPECT_TRUE(events.emplace_back().ParseFromString(file.substr(at + 12, size)));
  }
  EXPECT_EQ(events.at(0).file_version(), "brain.Event:2");
  events.erase(events.begin());
  return events;
}

using Scalars = std::map<std::pair<std::string, int64_t>, float>;

// Each of a tag and a step once.
Scalars ScalarsOf(const std::string& folder) {
  Scalars scalars;
  for (const Event& event : EventsOf(folder)) {
    for (const auto& value : event.summary().value()) {
      if (value.has_tensor()) continue;
      EXPECT_TRUE(scalars.insert({{value.tag(), event.step()}, value.simple_value()}).second)
          << value.tag() << " of step " << event.step();
    }
  }
  return scalars;
}

// The same, of metrics.jsonl.
Scalars RecordedScalars(const std::string& folder) {
  Scalars scalars;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    const int64_t step = record["step"].get<int64_t>();
    for (const auto& [name, value] : record.items()) {
      if (!value.is_number() || name == "step") continue;
      const std::string tag = name == "eval_loss"        ? "validation/loss"
                              : record["kind"] == "eval" ? "validation/" + name
                                                         : "train/" + name;
      scalars[{tag, step}] = value.get<float>();
    }
  }
  return scalars;
}

class EventFileTest : public ::testing::Test {
 protected:
  void Begin(std::optional<int64_t> resumed) {
    ASSERT_OK_AND_ASSIGN(metrics_, MetricsWriter::Open(folder_ + "/metrics.jsonl", resumed));
    ASSERT_OK_AND_ASSIGN(events_, EventFile::Open(folder_));
  }
  void Step(int64_t step, double loss) {
    ASSERT_OK(metrics_->Write(StepMetrics{.step = step,
                                          .loss = loss,
                                          .lr = 3e-4,
                                          .grad_norm = 0.5,
                                          .consumed_samples = 8 * step,
                                          .step_seconds = 0.25,
                                          .tokens_per_second = 1024,
                                          .peak_share = 0.75}));
    ASSERT_OK(events_->Follow());
  }

  const TestFolder own_;
  const std::string folder_ = own_.path();
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<EventFile> events_;
};

TEST_F(EventFileTest, HoldsTheNumbersOfMetricsJsonl) {
  Begin(std::nullopt);
  EXPECT_TRUE(EventsOf(folder_).empty());
  Step(1, 4.5);
  Step(2, 1.0 / 3);
  ASSERT_OK(metrics_->Write(EvalMetrics{.step = 2, .loss = 2.5, .tokens = 64}));
  ASSERT_OK(events_->Follow());
  const Scalars scalars = ScalarsOf(folder_);
  EXPECT_EQ(scalars, RecordedScalars(folder_));
  EXPECT_EQ(scalars.at({"train/loss", 2}), static_cast<float>(1.0 / 3));
  EXPECT_EQ(scalars.at({"validation/loss", 2}), 2.5f);
  // Several ranks.
  StepMetrics parallel{.step = 3, .pipeline_wait_share = 0.25};
  parallel.wire = {{"tp", "all-reduce", 30}, {"dp", "all-gather", 7}};
  parallel.time = {.compute = 0.5, .saving = 0.25};
  ASSERT_OK(metrics_->Write(parallel));
  ASSERT_OK(metrics_->Write(StepMetrics{.step = 4, .loss = NAN}));
  ASSERT_OK(events_->Follow());
  const Scalars more = ScalarsOf(folder_);
  EXPECT_EQ(more.at({"train/pipeline_wait_share", 3}), 0.25f);
  EXPECT_EQ(more.at({"train/time/compute", 3}), 0.5f);
  EXPECT_EQ(more.at({"train/time/saving", 3}), 0.25f);
  EXPECT_EQ(more.at({"train/wire_bytes", 3}), 37);
  EXPECT_EQ(more.at({"train/wire/tp/all-reduce", 3}), 30);
  EXPECT_TRUE(std::isnan(more.at({"train/loss", 4})));
}

TEST_F(EventFileTest, SavesUpToTheResumedStepRemain) {
  Begin(std::nullopt);
  for (int64_t step = 1; step <= 4; ++step) Step(step, 4);
  ASSERT_OK(events_->AddScalars(2, {{"save/seconds", 1.5}, {"save/bytes", 1024}}));
  ASSERT_OK(events_->AddScalars(4, {{"save/seconds", 2.5}}));
  ASSERT_OK(events_->AddScalars(2, {{"replica/seconds", 0.5}}));
  Begin(3);
  ASSERT_OK(events_->AddScalars(3, {{"resume/lost_steps", 1}}));
  const Scalars scalars = ScalarsOf(folder_);
  EXPECT_EQ(scalars.at({"save/seconds", 2}), 1.5f);
  EXPECT_EQ(scalars.at({"save/bytes", 2}), 1024);
  EXPECT_EQ(scalars.at({"replica/seconds", 2}), 0.5f);
  EXPECT_EQ(scalars.at({"resume/lost_steps", 3}), 1);
  EXPECT_FALSE(scalars.contains({"save/seconds", 4}));
}

TEST_F(EventFileTest, TextsAreUtf8) {
  Begin(std::nullopt);
  ASSERT_OK(events_->AddText(0, "sample", "a\xC3\xA4 \xFF\xC3"));
  EXPECT_EQ(EventsOf(folder_).back().summary().value(0).tensor().string_val(0),
            "a\xC3\xA4 \xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_F(EventFileTest, AResumedRunHasEachStepOnce) {
  const std::string path = folder_ + "/" + kEventFileName;
  Begin(std::nullopt);
  for (int64_t step = 1; step <= 5; ++step) Step(step, 5.0 - static_cast<double>(step));
  ASSERT_OK(events_->AddText(3, "sample", "kept"));
  ASSERT_OK(events_->AddText(5, "sample", "of a step that is undone"));
  const std::string whole = BytesOf(path);
  const double first_time = EventsOf(folder_)[0].wall_time();
  // Killed at any place of a record, in the last step or before a text.
  for (const size_t cut : {0, 1, 9, 20, 200, 700}) {
    std::filesystem::resize_file(path, whole.size() - cut);
    const std::string log = BytesOf(folder_ + "/metrics.jsonl");
    Begin(3);
    Step(4, 7);
    EXPECT_EQ(ScalarsOf(folder_), RecordedScalars(folder_));
    EXPECT_EQ(ScalarsOf(folder_).at({"train/loss", 4}), 7);
    EXPECT_FALSE(ScalarsOf(folder_).contains({"train/loss", 5}));
    EXPECT_EQ(EventsOf(folder_)[0].wall_time(), first_time);
    events_ = nullptr;
    metrics_ = nullptr;
    std::ofstream(path, std::ios::binary) << whole;
    std::ofstream(folder_ + "/metrics.jsonl", std::ios::binary) << log;
  }
  Begin(3);
  const std::vector<Event> events = EventsOf(folder_);
  const auto& text = events.back().summary().value(0);
  EXPECT_EQ(events.back().step(), 3);
  EXPECT_EQ(text.tag(), "sample");
  EXPECT_EQ(text.metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(text.tensor().dtype(), 7);
  EXPECT_EQ(text.tensor().string_val(0), "kept");
  Begin(std::nullopt);
  EXPECT_TRUE(EventsOf(folder_).empty());
}

TEST_F(EventFileTest, AFullDiskIsAnErrorOnceAndLeavesWhatCanBeRead) {
  Begin(std::nullopt);
  Step(1, 4);
  ASSERT_OK(metrics_->Write(StepMetrics{.step = 2}));
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{std::filesystem::file_size(folder_ + "/" + kEventFileName) + 5, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status full = events_->Follow();
  events_ = nullptr;
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(full.message().find(kEventFileName), absl::string_view::npos) << full;
  bool damaged = false;
  EXPECT_EQ(ReadEvents(BytesOf(folder_ + "/" + kEventFileName), &damaged).size(), 2);
  EXPECT_TRUE(damaged);
  Begin(2);
  EXPECT_EQ(ScalarsOf(folder_), RecordedScalars(folder_));
  EXPECT_FALSE(EventFile::Open(folder_ + "/no such folder").ok());
}

}  // namespace
}  // namespace tessera
