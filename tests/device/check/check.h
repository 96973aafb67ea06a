#ifndef TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
#define TESSERA_TESTS_DEVICE_CHECK_CHECK_H_

// A list of checks and the table that reports them.

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::testing {

struct CheckOutcome {
  enum Kind { kPassed, kFailed, kSkipped };
  Kind kind = kPassed;
  std::string
      detail;  // figures, or what was wrong; lines after the first are put below the table's
};

// Returns the outcome of a check; an error is a failure.
CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail);

struct Check {
  std::string name;
  std::function<CheckOutcome()> run;
};

// Runs the check named `only`, or all checks if it is empty, and writes a line for each as it ends:
// outcome, name, seconds, detail. InvalidArgument if no check has that name; Internal, naming the
// checks, if some fail.
absl::Status RunChecks(const std::vector<Check>& checks, const std::string& only,
                       std::ostream& table);

// Runs each program in `programs`, which are tests in GoogleTest's form: all must pass, and none
// may skip a case. Skipped if the folder has no program.
CheckOutcome RunTestPrograms(const std::filesystem::path& programs,
                             const std::filesystem::path& scratch);

// Runs `command` under one tool of compute-sanitizer ("memcheck", "racecheck"), which must find
// nothing. Skipped if there is no compute-sanitizer in $PATH or with the CUDA toolkit.
CheckOutcome RunSanitizer(const std::string& tool, const std::vector<std::string>& command,
                          const std::filesystem::path& scratch);

// Returns the path of the program in $PATH or in one of `folders`; empty if they do not have it.
std::string FindProgram(const std::string& name, const std::vector<std::string>& folders);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
