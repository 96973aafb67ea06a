#ifndef TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_H_
#define TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_H_

// Compares the records of two runs step by step.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tools/compare_runs/run_records.h"

namespace tessera {

inline constexpr double kFp32Tolerance = 1e-5;
inline constexpr double kBf16Tolerance = 1e-2;

struct CompareOptions {
  // Largest relative difference that counts as equal. nullopt: kBf16Tolerance where either run is
  // known to compute in bf16, else kFp32Tolerance.
  std::optional<double> tolerance;
  bool exact = false;  // every bit must be equal; `tolerance` is not used
  // Only these steps are compared, inclusive.
  int64_t first_step = 0;
  int64_t last_step = std::numeric_limits<int64_t>::max();
};

// One number of the records, over the steps at which both runs have it.
struct ComparedQuantity {
  std::string name;    // its field in metrics.jsonl
  bool judged = true;  // false: differences are shown, but permitted
  int64_t compared = 0;
  int64_t equal_bits = 0;
  double largest_difference = 0;  // relative
  int64_t largest_step = 0;       // 0: no difference
  // The first step at which the difference is not permitted, and both values there.
  std::optional<int64_t> first_step;
  double first_a = 0;
  double first_b = 0;
};

struct RunComparison {
  double tolerance = 0;  // 0 with `exact`
  bool exact = false;
  std::vector<ComparedQuantity> quantities;
  // Steps that only one of the runs has recorded.
  std::vector<int64_t> only_a, only_b;
  // Likewise evaluations, where both runs have some.
  std::vector<int64_t> only_a_evaluations, only_b_evaluations;

  bool equal() const;
  // The judged quantity that differs at the earliest step; null if no judged quantity differs.
  const ComparedQuantity* first_difference() const;
};

// |a - b| / max(|a|, |b|): 0 for equal bits and for two NaNs, infinite where one is not finite.
double RelativeDifference(double a, double b);

RunComparison CompareRuns(const RunRecords& a, const RunRecords& b, const CompareOptions& options);

// "1 to 40, 45" for ascending steps.
std::string StepRanges(const std::vector<int64_t>& steps);

}  // namespace tessera

#endif  // TESSERA_TOOLS_COMPARE_RUNS_COMPARISON_H_
