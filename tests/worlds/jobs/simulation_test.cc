#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/testing.h"
#include "gtest/gtest.h"
#include "tests/worlds/jobs/run_case.h"

namespace tessera::simulation {
namespace {

TEST(SimulationTest, TheSameSeedIsTheSameWorld) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunCase({.seed = seed}).hash, RunCase({.seed = seed}).hash) << "seed " << seed;
  }
}

TEST(SimulationTest, ACaseIsItsText) {
  const std::string text = "12 -p1.all -p2.async #1000017 #2000003";
  ASSERT_OK_AND_ASSIGN(const auto parsed, ParseCase(text));
  EXPECT_EQ(parsed.ToString(), text);
  EXPECT_EQ(ParseCase("12 #")->ToString(), "12 #");
  EXPECT_FALSE(ParseCase("p1.all").ok());
}

// Worlds in which a promise was once broken.
TEST(SimulationTest, OnceFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a rank with an empty storage condemned every checkpoint",
       "626 -p0.skips -p1.async -p1.diverges -p1.jumps -p2.all -p2.rots -p2.skips #"},
      {"a rank with an older storage condemned the newest one",
       "1204 -p0.all -p0.clock -p0.ranks -p0.skips -p0.tended -p2.overlaps -p2.skips -p3.all "
       "-p3.async -p3.token #"},
      {"what was set aside was deleted by a later save",
       "1 -p0.ranks -p1.staging -p2.all -p3.all -p3.back #"},
      {"retention deleted what it could not read once",
       "420 -p1.async -p1.overlaps -p2.back -p3.overlaps -p3.rots #3000197 #6000138"},
      {"retention deleted the best one after an error", "493 -p0.all -p1.rots #1000063 #1000119"},
      {"a restart took a diverged checkpoint", "37 -p0.all -p0.blind #"},
      {"a repeated commit arrived after its data was deleted",
       "1666 -p0.skips -p1.all -p1.diverges -p1.ranks -p2.async -p2.skips #1000017 #1000039 "
       "#1000066 #1000090 #1000147 #1000170"},
      {"data were deleted while their commit was on its way",
       "87 -p0.all -p0.diverges -p0.ranks -p0.skips -p1.rots -p1.token -p2.all -p2.async "
       "-p2.skips -p2.token #"},
      {"a commit whose reply was lost deleted its data", "130 #2000058"},
      {"a commit whose reply was lost deleted its data", "255 -p0.async #1000065 #2000056"},
      {"a store without metadata had a repeated commit refused", "134 -p0.rolling"},
      {"a user's deletion beside what was set aside", "264 -p0.async -p3.all #"},
      {"an abandonment that was interrupted", "2631 -p0.async #3000041"},
      {"a job that had stood still condemned what was saved anew",
       "4551 -p0.rolling -p2.async -p3.all #1000003 #1000066 #2000073 #3000052 #3000149"},
      {"a job ended well without its last checkpoint", "103 -p0.all -p1.back -p1.tended -p2.all #"},
  };
  for (const auto& [what, text] : cases) {
    const Outcome outcome = RunCase(*ParseCase(text));
    EXPECT_TRUE(outcome.findings.empty())
        << what << ": " << text << ": " << absl::StrJoin(outcome.findings, "; ");
  }
}

// A finding is shown by //tests/worlds/jobs:campaign -- --case="...".
TEST(SimulationTest, NoPromiseIsBroken) {
  constexpr int kSeconds = 8;
  timespec start, now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &start);
  int64_t calls = 0;
  uint64_t seed = 0;
  do {
    const Outcome outcome = RunCase({.seed = ++seed});
    calls += outcome.calls;
    if (!outcome.findings.empty()) {
      const Case smaller = Shrink({.seed = seed}, outcome.kind());
      FAIL() << "--case=\"" << smaller.ToString() << "\": " << outcome.findings.front() << "\n"
             << absl::StrJoin(RunCase(smaller, /*with_trace=*/true).trace, "\n");
    }
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  } while (now.tv_sec < start.tv_sec + kSeconds);
  std::printf("%llu seeds, %lld simulated calls\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(calls));
}

}  // namespace
}  // namespace tessera::simulation
