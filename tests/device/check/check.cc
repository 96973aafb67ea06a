#include "tests/device/check/check.h"

#include <algorithm>

#include "absl/strings/ascii.h"
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
    case CheckOutcome::kLeftOut:
      return "left out";
  }
  return "";
}

}  // namespace

CheckOutcome OutcomeOf(const absl::StatusOr<std::string>& detail) {
  if (detail.ok()) return {CheckOutcome::kPassed, *detail};
  return {CheckOutcome::kFailed, std::string(detail.status().message())};
}

Deadline::Deadline(double seconds, double grace_seconds)
    : seconds_(seconds), grace_seconds_(grace_seconds), start_(SteadyNow()) {}

double Deadline::left_seconds() const { return seconds_ - SecondsSince(start_); }

CheckOutcome Deadline::LeftOut() const {
  return {CheckOutcome::kLeftOut, absl::StrFormat("does not fit into --deadline=%.0f", seconds_)};
}

absl::Status Deadline::NotEnded() const {
  return absl::DeadlineExceededError(absl::StrFormat("has not ended at --deadline=%.0f", seconds_));
}

std::optional<double> CheckResults::FigureOf(const std::string& check,
                                             const std::string& figure) const {
  for (const auto& [name, outcome, seconds] : results) {
    const auto found = outcome.figures.find(figure);
    if (name == check && found != outcome.figures.end()) return found->second;
  }
  return std::nullopt;
}

std::string LastLine(std::string text) {
  text.erase(std::min(text.find("*** Check failure stack trace"), text.size()));
  absl::StripTrailingAsciiWhitespace(&text);
  return text.substr(text.rfind('\n') + 1);
}

std::string TableOf(const std::vector<CheckResult>& results) {
  std::string table;
  for (const CheckResult& result : results) {
    absl::StrAppendFormat(&table, "%-8s  %-13s %6.1f s  %s\n", Word(result.outcome.kind),
                          result.name, result.seconds,
                          absl::StrReplaceAll(result.outcome.detail, {{"\n", "\n    "}}));
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
