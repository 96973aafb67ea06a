#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/simulation/run_case.h"
#include "gtest/gtest.h"

namespace tessera::simulation {
namespace {

TEST(SimulationTest, TheSameSeedIsTheSameWorld) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunCase({.seed = seed}).hash, RunCase({.seed = seed}).hash) << "seed " << seed;
  }
}

TEST(SimulationTest, ACaseIsItsText) {
  const std::string text = "12 -p1.all -p2.async #1000017 #2000003";
  const auto parsed = ParseCase(text);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->ToString(), text);
  EXPECT_EQ(ParseCase("12 #")->ToString(), "12 #");
  EXPECT_FALSE(ParseCase("p1.all").ok());
}

// Worlds in which a promise was once broken.
TEST(SimulationTest, OnceFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a rank that cannot read condemns a checkpoint", "269 -p0.async -p2.all -p2.async #"},
  };
  for (const auto& [what, text] : cases) {
    const Outcome outcome = RunCase(*ParseCase(text));
    EXPECT_TRUE(outcome.findings.empty())
        << what << ": " << text << ": " << absl::StrJoin(outcome.findings, "; ");
  }
}

// A finding is shown by //checkpoint/simulation:campaign -- --case="...".
TEST(SimulationTest, NoPromiseIsBroken) {
  constexpr int kSeconds = 45;
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
