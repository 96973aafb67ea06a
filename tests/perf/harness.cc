#include "tests/perf/harness.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tessera {

double Now() { return absl::ToDoubleSeconds(SteadyNow()); }

double ProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double PeakResidentBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

double MedianSeconds(absl::FunctionRef<void()> work, double least_seconds) {
  work();
  std::vector<double> seconds;
  const double begin = Now();
  while (seconds.size() < 5 || (seconds.size() < 51 && Now() - begin < least_seconds)) {
    const double start = Now();
    work();
    seconds.push_back(Now() - start);
  }
  return Median(std::move(seconds));
}

void PrintFigure(const std::string& name, double value, const char* unit) {
  std::printf("figure %s %.6g %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

absl::Status ForEachRound(int rounds, absl::FunctionRef<absl::Status(int round)> body) {
  for (int round = 0; round < rounds; ++round) {
    std::fprintf(stderr, "round %d of %d\n", round + 1, rounds);
    if (absl::Status status = body(round); !status.ok()) return status;
  }
  return absl::OkStatus();
}

double Pairs::Ratio() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours_.size(); ++i) ratios.push_back(ours_[i] / theirs_[i]);
  return Median(std::move(ratios));
}

void Pairs::PrintRates(const std::string& prefix, const std::string& ratio,
                       const std::string& limit) const {
  std::printf("%s: %.0f MB/s, %s %.0f MB/s; ratios", prefix.c_str(), ours() / 1e6, limit.c_str(),
              theirs() / 1e6);
  for (size_t i = 0; i < ours_.size(); ++i) std::printf(" %.3f", ours_[i] / theirs_[i]);
  std::printf("\n");
  PrintFigure(absl::StrCat(prefix, ".", ratio), Ratio());
  PrintFigure(absl::StrCat(prefix, ".rate"), ours() / 1e6, "MB/s");
}

int RunProgram(const char* name, absl::FunctionRef<absl::Status()> body) {
  const absl::Status status = body();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, std::string(status.message()).c_str());
  return 1;
}

absl::Status WithFolder(const std::string& given,
                        absl::FunctionRef<absl::Status(const std::string& folder)> body) {
  if (!given.empty()) return body(given);
  std::string folder = "/tmp/tessera_perf_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError(folder);
  const absl::Status status = body(folder);
  std::filesystem::remove_all(folder);
  return status;
}

absl::Status RunRanks(int ranks, const std::string& flags,
                      absl::FunctionRef<void(const std::string& line)> on_line) {
  std::array<char, 4096> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) {
    return absl::InternalError("/proc/self/exe cannot be read");
  }
  const std::string command = absl::StrCat(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to ",
      "none -n ", ranks, " '", self.data(), "' ", flags);
  std::FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) return absl::InternalError("no process for mpirun");
  std::string text;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
    text += line.data();
    on_line(line.data());
  }
  if (pclose(output) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(flags, " failed: ", text));
}

}  // namespace tessera
