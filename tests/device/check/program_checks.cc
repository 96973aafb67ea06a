
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/device/check/check.h"
#include "tests/support/command.h"

namespace tessera::testing {
namespace {

// The last lines of what a program has printed.
std::string Tail(const Result& result) {
  constexpr size_t kBytes = 2000;
  const std::string text = result.out + result.err;
  return text.size() <= kBytes ? text : text.substr(text.size() - kBytes);
}

std::vector<std::filesystem::path> ProgramsIn(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> programs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file() && access(entry.path().c_str(), X_OK) == 0) {
      programs.push_back(entry.path());
    }
  }
  std::ranges::sort(programs);
  return programs;
}

}  // namespace

std::optional<Result> RunWithin(const Deadline& deadline, const std::vector<std::string>& command,
                                const std::filesystem::path& scratch) {
  const Process process(command, scratch);
  while (!process.Ended() && deadline.left_seconds() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const bool ended = process.Ended();
  if (!ended) process.Kill(SIGKILL);
  const Result result = process.Wait();
  if (!ended) return std::nullopt;
  return result;
}

CheckOutcome RunTestPrograms(const std::filesystem::path& programs,
                             const std::filesystem::path& scratch, const Deadline& deadline) {
  std::string names;
  for (const std::filesystem::path& program : ProgramsIn(programs)) {
    const std::string name = program.filename();
    const std::optional<Result> result = RunWithin(deadline, {program}, scratch);
    if (!result.has_value()) {
      return {CheckOutcome::kFailed, absl::StrCat(name, " ", deadline.NotEnded().message())};
    }
    if (result->exit_code != 0) {
      return {CheckOutcome::kFailed,
              absl::StrCat(name, " ended with ", result->exit_code, "\n", Tail(*result))};
    }
    if (result->out.find("[  SKIPPED ]") != std::string::npos) {
      return {CheckOutcome::kFailed, absl::StrCat(name, " skipped a case\n", Tail(*result))};
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  if (names.empty()) {
    return {CheckOutcome::kSkipped, absl::StrCat("no programs in ", programs.string())};
  }
  return {CheckOutcome::kPassed, names};
}

std::string FindProgram(const std::string& name, const std::vector<std::string>& folders) {
  std::vector<std::string> places;
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    if (!folder.empty()) places.emplace_back(folder);
  }
  places.insert(places.end(), folders.begin(), folders.end());
  for (const std::string& place : places) {
    const std::string program = absl::StrCat(place, "/", name);
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

CheckOutcome RunProgram(const std::vector<std::string>& command,
                        const std::filesystem::path& scratch, const Deadline& deadline) {
  const std::optional<Result> result = RunWithin(deadline, command, scratch);
  if (!result.has_value()) return deadline.LeftOut();
  if (result->exit_code == 0) return {CheckOutcome::kPassed, ""};
  return {CheckOutcome::kFailed,
          absl::StrCat(command.front(), " ended with ", result->exit_code, "\n", Tail(*result))};
}

CheckOutcome RunSanitizer(const std::string& tool, const std::vector<std::string>& command,
                          const std::filesystem::path& scratch, const Deadline& deadline) {
  const std::string sanitizer = FindProgram(
      "compute-sanitizer", {"/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"});
  if (sanitizer.empty()) return {CheckOutcome::kSkipped, "no compute-sanitizer"};
  std::vector<std::string> all = {sanitizer, "--tool", tool, "--error-exitcode", "99"};
  all.insert(all.end(), command.begin(), command.end());
  CheckOutcome outcome = RunProgram(all, scratch, deadline);
  if (outcome.kind == CheckOutcome::kPassed) outcome.detail = "nothing found";
  // So it is in some sandboxes, such as gVisor.
  if (absl::StrContains(outcome.detail, "Device not supported")) {
    return {CheckOutcome::kSkipped, "compute-sanitizer does not support the device here"};
  }
  return outcome;
}

}  // namespace tessera::testing
