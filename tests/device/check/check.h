#ifndef TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
#define TESSERA_TESTS_DEVICE_CHECK_CHECK_H_

// A list of checks and the table that reports them.

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

// An error is a failure.
CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail);

struct Check {
  std::string name;
  std::function<CheckOutcome()> run;
};

// Runs the checks named `only`, or all where it is empty, and writes a line for each as it ends:
// outcome, name, seconds, detail. InvalidArgument where no check has that name; Internal, naming
// them, where some fail.
absl::Status RunChecks(const std::vector<Check>& checks, const std::string& only,
                       std::ostream& table);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_CHECK_H_
