#include "tests/device/check/check.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/no_memory.h"
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
    case CheckOutcome::kLeftOut:
      return "left out";
  }
  return "";
}

std::string LineOf(const CheckResult& result) {
  return absl::StrFormat("%-8s  %-13s %6.1f s", Word(result.outcome.kind), result.name,
                         result.seconds);
}

CheckOutcome RunOne(const Check& check, const Deadline& deadline) {
  if (deadline.left_seconds() <= check.expected_seconds) return deadline.LeftOut();
  CheckOutcome outcome;
  const absl::Status thrown = CatchExceptions("check", [&] {
    outcome = check.run();
    return absl::OkStatus();
  });
  return thrown.ok() ? outcome : OutcomeOf(thrown);
}

}  // namespace

CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail) {
  if (detail.ok()) return {CheckOutcome::kPassed, *detail};
  return {CheckOutcome::kFailed, std::string(detail.status().message())};
}

Deadline::Deadline(double seconds) : seconds_(seconds), start_(SteadyNow()) {}

double Deadline::left_seconds() const { return seconds_ - SecondsSince(start_); }

CheckOutcome Deadline::LeftOut() const {
  return {CheckOutcome::kLeftOut, absl::StrFormat("does not fit into --deadline=%.0f", seconds_)};
}

absl::StatusOr<std::vector<CheckResult>> RunChecks(const std::vector<Check>& checks,
                                                   const std::string& only,
                                                   const Deadline& deadline, std::ostream& lines) {
  std::vector<std::string> names;
  std::vector<CheckResult> results;
  for (const Check& check : checks) {
    names.push_back(check.name);
    if (!only.empty() && check.name != only) continue;
    const absl::Duration start = SteadyNow();
    results.push_back({check.name, RunOne(check, deadline)});
    results.back().seconds = SecondsSince(start);
    lines << LineOf(results.back()) << "\n" << std::flush;
  }
  if (results.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no check is named ", only, "; there are ", absl::StrJoin(names, ", ")));
  }
  return results;
}

std::string TableOf(const std::vector<CheckResult>& results) {
  std::string table;
  for (const CheckResult& result : results) {
    absl::StrAppend(&table, LineOf(result), "  ",
                    absl::StrReplaceAll(result.outcome.detail, {{"\n", "\n    "}}), "\n");
  }
  return table;
}

nlohmann::json JsonOf(const std::vector<CheckResult>& results) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [name, outcome, seconds] : results) {
    all.push_back({{"name", name},
                   {"outcome", Word(outcome.kind)},
                   {"seconds", seconds},
                   {"detail", outcome.detail},
                   {"figures", outcome.figures}});
  }
  return all;
}

absl::Status StatusOf(const std::vector<CheckResult>& results) {
  std::vector<std::string> failed;
  for (const CheckResult& result : results) {
    if (result.outcome.kind == CheckOutcome::kFailed) failed.push_back(result.name);
  }
  if (failed.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("failed: ", absl::StrJoin(failed, ", ")));
}

}  // namespace tessera::testing
