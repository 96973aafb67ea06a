// Compares what two runs have recorded: see kHelp.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/invocation_dir.h"
#include "base/replace_file.h"
#include "base/status_macros.h"
#include "tools/compare_runs/comparison.h"
#include "tools/compare_runs/comparison_report.h"
#include "tools/compare_runs/run_records.h"
#include "trainer/metrics/standard_streams.h"

namespace tessera {
namespace {

constexpr char kHelp[] = R"(compare_runs A B [MORE...]

Compares two runs step by step: loss, gradient norm, learning rate and evaluation. A and B are run
folders or metrics.jsonl files. Tokens/s are shown, but not judged. Of more runs than two, each is
compared with A in turn.

  --tolerance=X                largest relative difference that counts as equal (1e-2 where the
                               config of a run says bf16, else 1e-5)
  --exact                      every bit must be equal
  --first-step=N               compare from this step on
  --last-step=N                compare up to this step
  --rows=N                     steps to show (20)
  --json                       one object for machines, or an array of them for more runs than two
  --svg=FILE                   one plot of all runs and their differences from A

Exit codes: 0 the runs are equal; 1 two differ, or one has steps that the other lacks; 2 wrong
usage, or records that cannot be read.
)";

constexpr int kDiffer = 1;
constexpr int kWrongUse = 2;

struct Arguments {
  std::vector<std::string> paths;
  CompareOptions options;
  int64_t rows = 20;
  bool json = false;
  bool help = false;
  std::string svg;  // empty: no plot
};

bool ParseCount(const std::string& text, int64_t& count) {
  return absl::SimpleAtoi(text, &count) && count >= 0;
}

bool ParseTolerance(const std::string& text, Arguments& arguments) {
  double tolerance = 0;
  if (!absl::SimpleAtod(text, &tolerance) || !(tolerance >= 0) || !std::isfinite(tolerance)) {
    return false;
  }
  arguments.options.tolerance = tolerance;
  return true;
}

struct Flag {
  std::string_view name;
  const char* expected;  // null: takes no value
  bool (*parse)(const std::string& value, Arguments& arguments);
};

constexpr char kNumber[] = "a number that is not negative";

constexpr Flag kFlags[] = {
    {"--tolerance", kNumber, ParseTolerance},
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
  return arguments;
}

// Returns whether all runs are equal to the first.
absl::StatusOr<bool> Compare(const Arguments& arguments) {
  std::vector<RunRecords> runs;
  for (const std::string& path : arguments.paths) {
    TESSERA_ASSIGN_OR_RETURN(runs.emplace_back(), ReadRunRecords(path));
  }
  bool equal = true;
  std::vector<std::string> reports;
  for (size_t run = 1; run < runs.size(); ++run) {
    const RunComparison comparison = CompareRuns(runs[0], runs[run], arguments.options);
    equal = equal && comparison.equal();
    reports.push_back(arguments.json ? ComparisonJson(runs[0], runs[run], comparison)
                                     : ComparisonText(runs[0], runs[run], comparison,
                                                      static_cast<int>(arguments.rows)));
  }
  const bool is_array = arguments.json && reports.size() > 1;
  std::fputs((is_array ? absl::StrCat("[", absl::StrJoin(reports, ","), "]\n")
                       : absl::StrJoin(reports, "\n"))
                 .c_str(),
             stdout);
  if (!arguments.svg.empty()) {
    TESSERA_RETURN_IF_ERROR(ReplaceFile(arguments.svg, ComparisonSvg(runs)));
    if (!arguments.json) std::printf("plot: %s\n", arguments.svg.c_str());
  }
  return equal;
}

int Main(const std::vector<std::string>& words) {
  ChdirToInvocationDir();
  const auto fail = [](const absl::Status& status) {
    std::fprintf(stderr, "compare_runs: %s\n", std::string(status.message()).c_str());
    return kWrongUse;
  };
  const absl::StatusOr<Arguments> arguments = ParseArguments(words);
  if (!arguments.ok()) return fail(arguments.status());
  if (arguments->help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const absl::StatusOr<bool> equal = Compare(*arguments);
  if (!equal.ok()) return fail(equal.status());
  return *equal ? 0 : kDiffer;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (!tessera::OpenMissingStandardStreams()) return tessera::kWrongUse;
  return tessera::Main(std::vector<std::string>(argv + 1, argv + argc));
}
