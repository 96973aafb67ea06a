#include "tests/device/check/check.h"

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/steady_time.h"

namespace tessera::testing {
namespace {

const char* Word(CheckOutcome::Kind kind) {
  switch (kind) {
    case CheckOutcome::kPassed:
      return "passed";
    case CheckOutcome::kFailed:
      return "FAILED";
    case CheckOutcome::kSkipped:
      return "skipped";
  }
  return "";
}

}  // namespace

CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail) {
  if (detail.ok()) return {CheckOutcome::kPassed, *detail};
  return {CheckOutcome::kFailed, std::string(detail.status().message())};
}

absl::Status RunChecks(const std::vector<Check>& checks, const std::string& only,
                       std::ostream& table) {
  std::vector<std::string> names, failed;
  bool found = only.empty();
  for (const Check& check : checks) {
    names.push_back(check.name);
    if (!only.empty() && check.name != only) continue;
    found = true;
    const absl::Duration start = SteadyNow();
    const CheckOutcome outcome = check.run();
    const double seconds = SecondsSince(start);
    if (outcome.kind == CheckOutcome::kFailed) failed.push_back(check.name);
    table << absl::StrFormat("%-7s  %-12s %6.1f s  %s\n", Word(outcome.kind), check.name, seconds,
                             absl::StrReplaceAll(outcome.detail, {{"\n", "\n    "}}))
          << std::flush;
  }
  if (!found) {
    return absl::InvalidArgumentError(
        absl::StrCat("no check is named ", only, "; there are ", absl::StrJoin(names, ", ")));
  }
  if (failed.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("failed: ", absl::StrJoin(failed, ", ")));
}

}  // namespace tessera::testing
