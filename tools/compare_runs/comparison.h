#ifndef TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_H_
#define TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_H_

// Comparison of the records of two runs, step by step.

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/compare_runs/run_records.h"

namespace tessera {

inline constexpr double kFp32Tolerance = 1e-5;
inline constexpr double kBf16Tolerance = 1e-2;

struct CompareOptions {
  // Largest difference that counts as equal. nullopt: `bf16_tolerance` if either run is known to
  // compute in bf16, otherwise `fp32_tolerance`.
  std::optional<double> tolerance;
  double fp32_tolerance = kFp32Tolerance;
  double bf16_tolerance = kBf16Tolerance;
  bool absolute = false;         // differences are |a - b|; else they are relative
  bool exact = false;            // every bit must be equal; the tolerances are not used
  std::set<std::string> judged;  // names of quantities; empty: all but tokens_per_second
  // The range of steps to compare, inclusive.
  int64_t first_step = 0;
  int64_t last_step = std::numeric_limits<int64_t>::max();
};

// One number of the records, over the steps at which both runs have it.
struct ComparedQuantity {
  std::string name;    // its field in metrics.jsonl
  bool judged = true;  // false: differences are shown, but permitted
  bool named = false;  // in CompareOptions::judged
  int64_t compared = 0;
  int64_t equal_bits = 0;
  double largest_difference = 0;  // relative, or absolute if the comparison is
  int64_t largest_step = 0;       // 0: no difference
  double largest_absolute_difference = 0;
  int64_t largest_absolute_step = 0;
  int64_t within_rounding = 0;  // steps at which the difference may come from printing it
  int64_t last_step = 0;        // the last one compared
  // The first step at which the difference is not permitted, and both values there.
  std::optional<int64_t> first_step;
  double first_a = 0;
  double first_b = 0;
};

struct RunComparison {
  // The range of steps that were compared, inclusive.
  int64_t first_step = 0;
  int64_t last_step = std::numeric_limits<int64_t>::max();
  double tolerance = 0;  // 0 with `exact`
  bool absolute = false;
  bool exact = false;
  std::vector<ComparedQuantity> quantities;
  // Steps that only one of the runs has recorded. Steps that another trainer's log skips, because
  // it records only each tenth one, do not count.
  std::vector<int64_t> only_a, only_b;
  // Evaluations that only one of the runs has recorded, if both have some.
  std::vector<int64_t> only_a_evaluations, only_b_evaluations;

  bool equal() const;
  // Returns whether the runs have the loss of a step or an evaluation in common, and every quantity
  // that is named.
  bool comparable() const;
  // Returns the judged quantity that differs at the earliest step; null if no judged quantity
  // differs.
  const ComparedQuantity* first_difference() const;
};

// Returns the steps of the comparison's range that both runs have recorded.
std::vector<int64_t> CommonSteps(const RunRecords& a, const RunRecords& b,
                                 const RunComparison& comparison);

// Returns the tokens/s of `b` divided by those of `a`: medians over CommonSteps(); NaN if unknown.
double SpeedRatio(const RunRecords& a, const RunRecords& b, const RunComparison& comparison);

// Returns |a - b| / max(|a|, |b|): 0 for equal numbers and for two NaNs, infinity if a or b is
// otherwise not finite.
double RelativeDifference(double a, double b);

// Returns RelativeDifference(), or |a - b| if `absolute`.
double Difference(double a, double b, bool absolute);

RunComparison CompareRuns(const RunRecords& a, const RunRecords& b, const CompareOptions& options);

// Returns "1 to 40, 45" for ascending steps; the first ten of such ranges.
std::string StepRanges(const std::vector<int64_t>& steps);

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_H_
