#ifndef TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
#define TESSERA_TESTS_DEVICE_CHECK_CHECK_H_

// A list of checks, and what is reported of them: a line as each ends, a table, JSON.

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"

namespace tessera::testing {

struct CheckOutcome {
  enum Kind { kPassed, kFailed, kSkipped, kLeftOut };
  Kind kind = kPassed;
  // Figures, or what was wrong; lines after the first are put below the table's.
  std::string detail;
  std::map<std::string, double> figures = {};  // by name, with units in it
};

// Returns the outcome of a check; an error is a failure.
CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail);

// The time that all checks together may take.
class Deadline {
 public:
  Deadline() : Deadline(std::numeric_limits<double>::infinity()) {}
  explicit Deadline(double seconds);
  double left_seconds() const;
  // Returns the outcome of a check that was left out, or ended, for lack of time.
  CheckOutcome LeftOut() const;

 private:
  const double seconds_;
  const absl::Duration start_;
};

struct Check {
  std::string name;
  std::function<CheckOutcome()> run;
  // What it may take on a GPU that is new to it: it is left out where less time is left.
  double expected_seconds = 0;
};

struct CheckResult {
  std::string name;
  CheckOutcome outcome;
  double seconds = 0;
};

// Runs the check named `only`, or all checks if it is empty, and writes a line for each as it ends:
// outcome, name, seconds. An exception for lack of memory is a failure. InvalidArgument if no check
// has that name.
absl::StatusOr<std::vector<CheckResult>> RunChecks(const std::vector<Check>& checks,
                                                   const std::string& only,
                                                   const Deadline& deadline, std::ostream& lines);

// Returns a table: the lines of RunChecks() with their details.
std::string TableOf(const std::vector<CheckResult>& results);
// Returns [{"name": ..., "outcome": ..., "seconds": ..., "detail": ..., "figures": {...}}, ...].
nlohmann::json JsonOf(const std::vector<CheckResult>& results);
// Returns Internal, naming the checks, if some have failed.
absl::Status StatusOf(const std::vector<CheckResult>& results);

// Runs a command. Returns nothing if it has not ended when the deadline is over; it has been killed
// then.
std::optional<Result> RunWithin(const Deadline& deadline, const std::vector<std::string>& command,
                                const std::filesystem::path& scratch);

// Runs each program in `programs`, which are tests in GoogleTest's form: all must pass, and none
// may skip a case. Skipped if the folder has no program.
CheckOutcome RunTestPrograms(const std::filesystem::path& programs,
                             const std::filesystem::path& scratch, const Deadline& deadline = {});

// Runs a command, which must end with 0. The detail of one that does not has its last lines. One
// that has not ended when the deadline is over is killed, and left out.
CheckOutcome RunProgram(const std::vector<std::string>& command,
                        const std::filesystem::path& scratch, const Deadline& deadline = {});

// Runs `command` under one tool of compute-sanitizer ("memcheck", "racecheck"), which must find
// nothing. Skipped if there is no compute-sanitizer in $PATH or with the CUDA toolkit.
CheckOutcome RunSanitizer(const std::string& tool, const std::vector<std::string>& command,
                          const std::filesystem::path& scratch, const Deadline& deadline = {});

// Returns the path of the program in $PATH or in one of `folders`; empty if they do not have it.
std::string FindProgram(const std::string& name, const std::vector<std::string>& folders);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
