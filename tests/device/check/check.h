#ifndef TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
#define TESSERA_TESTS_DEVICE_CHECK_CHECK_H_

// A list of checks, which run in processes of their own, and what is reported of them.

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
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

inline constexpr char kDeviceHasFailed[] = "the device has failed";

// Returns the outcome of a check; an error is a failure.
CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail);

// The time that all checks together may take.
class Deadline {
 public:
  Deadline() : Deadline(std::numeric_limits<double>::infinity()) {}
  explicit Deadline(double seconds, double grace_seconds = 5);
  double left_seconds() const;
  // The same, with what a process may take beyond it before it is killed.
  double left_seconds_with_grace() const { return left_seconds() + grace_seconds_; }
  // Returns the outcome of a check that was left out for lack of time.
  CheckOutcome LeftOut() const;
  // Returns DeadlineExceeded, for what has begun and does not end.
  absl::Status NotEnded() const;

 private:
  const double seconds_, grace_seconds_;
  const absl::Duration start_;
};

struct Check {
  std::string name;
  std::function<CheckOutcome()> run;
  // What it may take on a GPU that is new to it: it is left out where less time is left, unless it
  // is the only one that is asked for.
  double expected_seconds = 0;
};

// The checks of a process, in the order in which they run.
struct CheckList {
  std::vector<Check> checks;
  nlohmann::json about = nlohmann::json::object();  // what they run on
  // Returns whether the process can run further checks; null: it can. A check after which it
  // cannot has failed.
  std::function<bool()> usable = nullptr;
  std::shared_ptr<void> owner = nullptr;  // of what the checks refer to
};

struct CheckResult {
  std::string name;
  CheckOutcome outcome;
  double seconds = 0;
};

struct CheckResults {
  nlohmann::json about;
  std::vector<CheckResult> results;

  // Returns a figure of a check; nothing if it has none of that name.
  std::optional<double> FigureOf(const std::string& check, const std::string& figure) const;
};

// Runs the check named `only`, or all checks if it is empty, in another process, which calls
// make(). Each check has one outcome. One that throws, ends its process, leaves it unusable or has
// not ended at the deadline is a failure. Those behind it run in one more process; where that one
// cannot run them, or no time is left, they are left out, with the reason. Calls ended() with all
// results so far as each check has its outcome; make() finds what it has kept. A process that does
// not end, and what it has started, is killed. Precondition: the calling process has one thread.
//
// Errors, where no check has begun: that of make(); InvalidArgument if no check has that name;
// Internal if the process ends, DeadlineExceeded if it does nothing until the deadline.
absl::StatusOr<CheckResults> RunChecks(
    const std::function<absl::StatusOr<CheckList>()>& make, const std::string& only,
    const Deadline& deadline,
    const std::function<void(const CheckResults&)>& ended = [](const CheckResults&) {});
// Does the same in this process. Those behind a check after which it is not usable are left out.
absl::StatusOr<CheckResults> RunChecksHere(const std::function<absl::StatusOr<CheckList>()>& make,
                                           const std::string& only, const Deadline& deadline,
                                           const std::function<void(const CheckResults&)>& ended);

// Returns a line for each check: outcome, name, seconds and detail.
std::string TableOf(const std::vector<CheckResult>& results);
// Returns [{"name": ..., "outcome": ..., "seconds": ..., "detail": ..., "figures": {...}}, ...].
nlohmann::json JsonOf(const std::vector<CheckResult>& results);
// Returns the last line of what a program has written, without the stack of a failed CHECK().
std::string LastLine(std::string text);
// Returns Internal, naming the checks, if some have failed.
absl::Status StatusOf(const std::vector<CheckResult>& results);

// Runs a command. Returns nothing if it has not ended when the deadline is over; it has been killed
// then.
std::optional<Result> RunWithin(const Deadline& deadline, const std::vector<std::string>& command,
                                const std::filesystem::path& scratch);

// Runs each program in `programs`, which are tests in GoogleTest's form: all must pass, and none
// may skip a case or not end. Skipped if the folder has no program.
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
