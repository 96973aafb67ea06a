// Compares what two runs have recorded: see kHelp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/invocation_dir.h"
#include "base/program.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "tools/compare_runs/comparison.h"
#include "tools/compare_runs/comparison_report.h"
#include "tools/compare_runs/run_records.h"

namespace tessera {
namespace {

constexpr char kHelp[] = R"(compare_runs A B [MORE...]

Compares two runs step by step: loss, gradient norm, learning rate and evaluation. Tokens/s are
shown, but not judged. Of more runs than two, each is compared with A in turn.

A run is a run folder or its metrics.jsonl; an event file of TensorBoard, whoever wrote it, or a
folder of them; or a log of llm.c (main.log, or what it prints), InfiniTrain, Megatron-LM or
torchtitan. The contents tell which it is. Steps and numbers that such a log lacks are not compared,
and a difference that is less than half a unit of the last digit printed does not count.

  --tolerance=X                largest difference that counts as equal
  --tolerance-bf16=X           the same where a run is known to compute in bf16 (1e-2)
  --tolerance-fp32=X           the same for all others (1e-5)
  --absolute                   differences are |a - b|; without it, |a - b| / max(|a|, |b|)
  --exact                      every bit must be equal
  --judge=NAMES                only these are judged, the others shown: loss, grad_norm, lr,
                               eval_loss, tokens_per_second
  --first-step=N               compare from this step on
  --last-step=N                compare up to this step
  --step-offset=N              added to the steps of all runs but A: 1 if they are counted from 0
  --rows=N                     steps to show (20)
  --json                       one object for machines, or an array of them for more runs than two
  --markdown                   a short table for a pull request, one row per run
  --svg=FILE                   one plot of all runs and their differences from A

Exit codes: 0 the runs are equal; 1 two differ, or one has steps that the other lacks; 2 they could
not be compared: wrong usage, records that cannot be read, no step or loss in common, or a number
that --judge names and one of them lacks.
)";

constexpr int kDiffer = 1;
constexpr int kNotCompared = 2;

struct Arguments {
  std::vector<std::string> paths;
  CompareOptions options;
  int64_t rows = 20;
  int64_t step_offset = 0;
  bool json = false;
  bool markdown = false;
  bool help = false;
  std::string svg;  // empty: no plot
};

bool ParseCount(const std::string& text, int64_t& count) {
  return absl::SimpleAtoi(text, &count) && count >= 0;
}

bool ParseTolerance(const std::string& text, double& tolerance) {
  return absl::SimpleAtod(text, &tolerance) && tolerance >= 0 && std::isfinite(tolerance);
}

constexpr char kNames[] = "some of loss, grad_norm, lr, eval_loss, tokens_per_second";

bool ParseNames(const std::string& text, std::set<std::string>& names) {
  names = absl::StrSplit(text, ',');
  const std::set<std::string> known = {"loss", "grad_norm", "lr", "eval_loss", "tokens_per_second"};
  return std::ranges::includes(known, names);
}

struct Flag {
  std::string_view name;
  const char* expected;  // null: takes no value
  bool (*parse)(const std::string& value, Arguments& arguments);
};

constexpr char kNumber[] = "a number that is not negative";

constexpr Flag kFlags[] = {
    {"--tolerance", kNumber,
     [](const std::string& v, Arguments& a) {
       return ParseTolerance(v, a.options.tolerance.emplace());
     }},
    {"--tolerance-fp32", kNumber,
     [](const std::string& v, Arguments& a) {
       return ParseTolerance(v, a.options.fp32_tolerance);
     }},
    {"--tolerance-bf16", kNumber,
     [](const std::string& v, Arguments& a) {
       return ParseTolerance(v, a.options.bf16_tolerance);
     }},
    {"--absolute", nullptr,
     [](const std::string&, Arguments& a) { return a.options.absolute = true; }},
    {"--judge", kNames,
     [](const std::string& v, Arguments& a) { return ParseNames(v, a.options.judged); }},
    {"--step-offset", "an integer of at most 15 digits",
     [](const std::string& v, Arguments& a) {
       return v.size() <= 16 && absl::SimpleAtoi(v, &a.step_offset);
     }},
    {"--markdown", nullptr, [](const std::string&, Arguments& a) { return a.markdown = true; }},
    {"--exact", nullptr, [](const std::string&, Arguments& a) { return a.options.exact = true; }},
    {"--first-step", kNumber,
     [](const std::string& v, Arguments& a) { return ParseCount(v, a.options.first_step); }},
    {"--last-step", kNumber,
     [](const std::string& v, Arguments& a) { return ParseCount(v, a.options.last_step); }},
    {"--rows", kNumber, [](const std::string& v, Arguments& a) { return ParseCount(v, a.rows); }},
    {"--json", nullptr, [](const std::string&, Arguments& a) { return a.json = true; }},
    {"--help", nullptr, [](const std::string&, Arguments& a) { return a.help = true; }},
    {"--svg", "a file",
     [](const std::string& v, Arguments& a) {
       a.svg = v;
       return !v.empty();
     }},
};

absl::Status ParseFlag(const std::string& argument, Arguments& arguments) {
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  for (const Flag& flag : kFlags) {
    if (flag.name != name) continue;
    const bool has_value = equals != argument.npos;
    if (has_value != (flag.expected != nullptr)) {
      return absl::InvalidArgumentError(has_value
                                            ? absl::StrCat(name, " takes no value")
                                            : absl::StrCat(name, "=: expected ", flag.expected));
    }
    if (!flag.parse(has_value ? argument.substr(equals + 1) : "", arguments)) {
      return absl::InvalidArgumentError(absl::StrCat(argument, ": expected ", flag.expected));
    }
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown flag ", name, "; see --help"));
}

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& words) {
  Arguments arguments;
  for (const std::string& word : words) {
    if (!word.starts_with("--")) {
      arguments.paths.push_back(word);
    } else {
      TESSERA_RETURN_IF_ERROR(ParseFlag(word, arguments));
    }
  }
  if (arguments.help) return arguments;
  if (arguments.paths.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected two runs, found ", arguments.paths.size(), "; see --help"));
  }
  if (arguments.options.exact && arguments.options.tolerance.has_value()) {
    return absl::InvalidArgumentError("--exact and --tolerance exclude each other");
  }
  if (arguments.json && arguments.markdown) {
    return absl::InvalidArgumentError("--json and --markdown exclude each other");
  }
  return arguments;
}

// Adds `offset` to the number of each step.
template <typename Value>
void AddToSteps(int64_t offset, std::map<int64_t, Value>& steps) {
  std::map<int64_t, Value> moved;
  for (auto& [step, value] : steps) moved.emplace_hint(moved.end(), step + offset, value);
  steps = std::move(moved);
}

absl::StatusOr<std::vector<RunRecords>> ReadRuns(const Arguments& arguments) {
  std::vector<RunRecords> runs;
  for (const std::string& path : arguments.paths) {
    TESSERA_ASSIGN_OR_RETURN(RunRecords run, ReadRunRecords(path));
    if (!runs.empty() && arguments.step_offset != 0) {
      AddToSteps(arguments.step_offset, run.steps);
      AddToSteps(arguments.step_offset, run.roundings);
      AddToSteps(arguments.step_offset, run.evaluation_losses);
      AddToSteps(arguments.step_offset, run.evaluation_roundings);
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

// Returns the exit code.
absl::StatusOr<int> Compare(const Arguments& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RunRecords> runs, ReadRuns(arguments));
  int exit_code = 0;
  std::vector<std::string> reports;
  std::vector<RunComparison> comparisons;
  for (size_t run = 1; run < runs.size(); ++run) {
    const RunComparison& comparison =
        comparisons.emplace_back(CompareRuns(runs[0], runs[run], arguments.options));
    exit_code = std::max(exit_code, !comparison.comparable() ? kNotCompared
                                    : comparison.equal()     ? 0
                                                             : kDiffer);
    if (arguments.markdown) continue;
    reports.push_back(arguments.json ? ComparisonJson(runs[0], runs[run], comparison)
                                     : ComparisonText(runs[0], runs[run], comparison,
                                                      static_cast<int>(arguments.rows)));
  }
  if (arguments.markdown) reports.push_back(ComparisonMarkdown(runs, comparisons));
  const bool is_array = arguments.json && reports.size() > 1;
  Print(is_array ? absl::StrCat("[", absl::StrJoin(reports, ","), "]\n")
                 : absl::StrJoin(reports, "\n"));
  if (!arguments.svg.empty()) {
    TESSERA_RETURN_IF_ERROR(ReplaceFile(arguments.svg, ComparisonSvg(runs, comparisons)));
    if (!arguments.json && !arguments.markdown) Print(absl::StrCat("plot: ", arguments.svg, "\n"));
  }
  return exit_code;
}

int Main(const std::vector<std::string>& words) {
  ChdirToInvocationDir();
  const auto fail = [](const absl::Status& status) {
    PrintError("compare_runs", std::string(status.message()));
    return kNotCompared;
  };
  const absl::StatusOr<Arguments> arguments = ParseArguments(words);
  if (!arguments.ok()) return fail(arguments.status());
  if (arguments->help) {
    Print(kHelp);
    return 0;
  }
  const absl::StatusOr<int> exit_code = Compare(*arguments);
  return exit_code.ok() ? *exit_code : fail(exit_code.status());
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      {.name = "compare_runs", .prints_result = true, .failure_code = tessera::kNotCompared},
      [&] { return tessera::Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
