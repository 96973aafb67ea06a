// Runs one seed after the other and prints what they find, smaller:
//
//   bazel run //tests/worlds/jobs:campaign -- --minutes=60
//   bazel run //tests/worlds/jobs:campaign -- --case="12 -p1.all #1000017"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "tests/worlds/jobs/run_case.h"

ABSL_FLAG(double, minutes, 1, "how long it runs");
ABSL_FLAG(uint64_t, first_seed, 1, "the seeds are this one and those after it");
ABSL_FLAG(int, workers, 2, "cases that run at once");
ABSL_FLAG(int, shown_per_kind, 2, "findings of a kind that each worker shrinks and prints");
ABSL_FLAG(std::string, case, "", "one case instead, with everything that happens");

namespace tessera::simulation {
namespace {

struct Totals {
  uint64_t seeds;
  uint64_t calls;
  uint64_t failing;
};

double RealSeconds() {
  timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Show(const Case& what) {
  const Outcome outcome = RunCase(what, /*with_trace=*/true);
  for (const std::string& line : outcome.trace) std::printf("%s\n", line.c_str());
  for (const std::string& finding : outcome.findings) std::printf("%s\n", finding.c_str());
  std::printf("hash %llx\n", static_cast<unsigned long long>(outcome.hash));
}

void Work(int worker, Totals& totals) {
  const int workers = absl::GetFlag(FLAGS_workers);
  const double end = RealSeconds() + 60 * absl::GetFlag(FLAGS_minutes);
  std::map<std::string, int> shown;
  for (uint64_t seed = absl::GetFlag(FLAGS_first_seed) + worker; RealSeconds() < end;
       seed += workers) {
    const Outcome outcome = RunCase({.seed = seed});
    __atomic_fetch_add(&totals.seeds, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&totals.calls, outcome.calls, __ATOMIC_RELAXED);
    if (outcome.findings.empty()) continue;
    __atomic_fetch_add(&totals.failing, 1, __ATOMIC_RELAXED);
    if (++shown[outcome.kind()] > absl::GetFlag(FLAGS_shown_per_kind)) continue;
    const Case smaller = Shrink({.seed = seed}, outcome.kind());
    const Outcome again = RunCase(smaller);
    std::printf("seed %llu, --case=\"%s\": %s\n", static_cast<unsigned long long>(seed),
                smaller.ToString().c_str(),
                (again.findings.empty() ? outcome : again).findings.front().c_str());
    std::fflush(stdout);
  }
}

int Main() {
  if (const std::string text = absl::GetFlag(FLAGS_case); !text.empty()) {
    const absl::StatusOr<Case> what = ParseCase(text);
    if (!what.ok()) {
      std::fprintf(stderr, "%s\n", std::string(what.status().message()).c_str());
      return 2;
    }
    Show(*what);
    return 0;
  }
  auto* const totals = static_cast<Totals*>(
      mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int worker = 0; worker < absl::GetFlag(FLAGS_workers); ++worker) {
    if (fork() == 0) {
      Work(worker, *totals);
      _exit(0);
    }
  }
  while (wait(nullptr) > 0) {
  }
  std::printf("%llu seeds, %llu simulated calls, %llu seeds with findings\n",
              static_cast<unsigned long long>(totals->seeds),
              static_cast<unsigned long long>(totals->calls),
              static_cast<unsigned long long>(totals->failing));
  return totals->failing == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera::simulation

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("simulates jobs that save and resume, with faults");
  absl::ParseCommandLine(argc, argv);
  return tessera::simulation::Main();
}
