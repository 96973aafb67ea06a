#include "trainer/metrics/kept_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {
namespace {

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
