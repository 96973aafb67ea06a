#include "trainer/metrics/run_events.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"

namespace tessera {
namespace {

class RunEventsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  RunEvents Open() {
    return RunEvents(folder_, IdleSeconds(folder_),
                     [this](const std::string& failure) { failures_.push_back(failure); });
  }
  std::vector<nlohmann::json> Lines() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ + "/events.jsonl");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    }
    return lines;
  }

  const std::string folder_ = ::testing::TempDir() + "/run_events";
  std::vector<std::string> failures_;
};

TEST(LargestOfTest, KeepsTheNumbersOfTheseRanks) {
  const std::vector<NumbersOfRank> ranks = {{{"s", 2}}, {{"s", 3}}, {{"s", 1}}, {{"s", 3}}};
  EXPECT_EQ(LargestOf(ranks, "s", 2), (std::map<int, NumbersOfRank>{{1, ranks[1]}, {3, ranks[3]}}));
  EXPECT_EQ(LargestOf(ranks, "s", 9).size(), 4);
  EXPECT_TRUE(LargestOf({}, "s", 9).empty());
}

TEST_F(RunEventsTest, AreAddedToThoseOfProcessesThatDied) {
  {
    RunEvents events = Open();
    EXPECT_FALSE(events.idle_seconds().has_value());
    events.Add({.name = "start",
                .text = "begins",
                .topology = "tp2",
                .numbers = {{"parameters", 12345}, {"predicted_step_seconds", 0.25}},
                .ranks = {{0, {{"weights", 1}}}, {1, {{"weights", 2}}}}});
  }
  // Lost to a power failure; then to a kill.
  std::ofstream(folder_ + "/events.jsonl", std::ios::app)
      << std::string(5, '\0') << "\n{\"kind\":\"event\",\"event\":\"cut\n"
      << R"({"kind":"ev)";
  RunEvents events = Open();
  EXPECT_TRUE(events.idle_seconds().has_value());
  events.Add({.name = "sample", .step = 7, .text = "a\nb \xFF", .strings = {{"prompt", "\""}}});
  const std::vector<nlohmann::json> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "start");
  EXPECT_EQ(lines[0]["topology"], "tp2");
  EXPECT_TRUE(lines[0]["parameters"].is_number_integer());
  EXPECT_EQ(lines[0]["predicted_step_seconds"], 0.25);
  EXPECT_EQ(lines[0]["ranks"][1], (nlohmann::json{{"rank", 1}, {"weights", 2}}));
  EXPECT_EQ(lines[1]["step"], 7);
  EXPECT_EQ(lines[1]["text"], "a\nb \xEF\xBF\xBD");
  EXPECT_EQ(lines[1]["prompt"], "\"");
  EXPECT_GT(lines[1]["time"], 1.7e9);
  EXPECT_TRUE(failures_.empty());
}

TEST_F(RunEventsTest, AFailureIsSaidOnce) {
  std::filesystem::create_directory(folder_ + "/events.jsonl");
  RunEvents events = Open();
  events.Add({.name = "end"});
  events.Add({.name = "end"});
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(failures_[0], "no more events are recorded: cannot open " + folder_ +
                              "/events.jsonl: not a regular file; the run goes on without them");
}

}  // namespace
}  // namespace tessera
