#ifndef TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_REPORT_H_
#define TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_REPORT_H_

// Reports of a comparison of runs as text, as JSON, as Markdown and as a plot.

#include <span>
#include <string>

#include "tools/compare_runs/comparison.h"
#include "tools/compare_runs/run_records.h"

namespace tessera {

// Returns a table of at most about `rows` steps, spread evenly, with the first and the last step
// and the first difference among them; then one line per quantity, and one sentence with the
// result.
std::string ComparisonText(const RunRecords& a, const RunRecords& b,
                           const RunComparison& comparison, int rows);

// Returns one object with the contents of ComparisonText() and every step of CommonSteps(). A
// number that JSON cannot express is null.
std::string ComparisonJson(const RunRecords& a, const RunRecords& b,
                           const RunComparison& comparison);

// Returns the result for a pull request: a table of GitHub's Markdown with one row per run, and the
// notes. Precondition: comparisons of the first run with each of the others.
std::string ComparisonMarkdown(std::span<const RunRecords> runs,
                               std::span<const RunComparison> comparisons);

// Returns a plot. For two runs: loss, gradient norm, learning rate and tokens/s, and the relative
// differences of the first two, on logarithmic axes. For more runs: the losses of all, and their
// differences from those of the first. Preconditions: at least two runs; comparisons of the first
// run with each of the others.
std::string ComparisonSvg(std::span<const RunRecords> runs,
                          std::span<const RunComparison> comparisons);

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_REPORT_H_
