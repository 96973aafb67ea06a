#include "tools/compare_runs/comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "trainer/metrics/record_fields.h"

namespace tessera {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The values of two runs at the steps that both have recorded.
class Comparer {
 public:
  explicit Comparer(const RunComparison& rule) : rule_(rule) {}

  // Adds the comparison of two numbers. RunRecords describes the roundings.
  void Add(int64_t step, double a, double b, double rounding_a, double rounding_b,
           ComparedQuantity& quantity) const {
    if (rounding_a == kNotRecorded || rounding_b == kNotRecorded) return;
    ++quantity.compared;
    quantity.last_step = step;
    const bool same = SameBits(a, b);
    if (same) ++quantity.equal_bits;
    const double difference = Difference(a, b, rule_.absolute);
    if (difference > quantity.largest_difference) {
      quantity.largest_difference = difference;
      quantity.largest_step = step;
    }
    const double distance = Difference(a, b, /*absolute=*/true);
    if (distance > quantity.largest_absolute_difference) {
      quantity.largest_absolute_difference = distance;
      quantity.largest_absolute_step = step;
    }
    bool permitted = rule_.exact ? same : difference <= rule_.tolerance;
    // With the same number of printed digits, both must print the same number. With different
    // precision, one may be the other after rounding; the factor covers the rounding of the
    // subtraction itself.
    const double rounding = rounding_a == rounding_b ? 0 : (rounding_a + rounding_b) * (1 + 1e-6);
    if (!permitted && !rule_.exact && rounding > 0 && std::isfinite(distance) &&
        distance <= rounding + Scaled(a, b)) {
      permitted = true;
      ++quantity.within_rounding;
    }
    if (permitted || !quantity.judged || quantity.first_step.has_value()) return;
    quantity.first_step = step;
    quantity.first_a = a;
    quantity.first_b = b;
  }

 private:
  // Returns the tolerance as an absolute difference.
  double Scaled(double a, double b) const {
    return rule_.absolute ? rule_.tolerance : rule_.tolerance * std::max(std::abs(a), std::abs(b));
  }

  const RunComparison& rule_;
};

// Calls `both` for each step that both maps have within the options' range, and notes the others.
template <typename Value, typename Function>
void ForEachStep(const std::map<int64_t, Value>& a, const std::map<int64_t, Value>& b,
                 const CompareOptions& options, std::vector<int64_t>& only_a,
                 std::vector<int64_t>& only_b, const Function& both) {
  const auto in_range = [&](int64_t step) {
    return options.first_step <= step && step <= options.last_step;
  };
  for (const auto& [step, value] : a) {
    if (!in_range(step)) continue;
    const auto other = b.find(step);
    if (other == b.end()) {
      only_a.push_back(step);
    } else {
      both(step, value, other->second);
    }
  }
  for (const auto& [step, value] : b) {
    if (in_range(step) && !a.contains(step)) only_b.push_back(step);
  }
}

double Tolerance(const RunRecords& a, const RunRecords& b, const CompareOptions& options) {
  if (options.exact) return 0;
  if (options.tolerance.has_value()) return *options.tolerance;
  return a.bf16.value_or(false) || b.bf16.value_or(false) ? options.bf16_tolerance
                                                          : options.fp32_tolerance;
}

// Removes from `steps`, which `run` lacks, those that its log skips: up to its last step, and after
// it fewer than are between its last two.
void RemoveSkipped(const RunRecords& run, std::vector<int64_t>& steps) {
  if (run.foreign.empty() || run.steps.empty()) return;
  const int64_t last = run.steps.rbegin()->first;
  const int64_t interval = run.steps.size() == 1 ? 1 : last - std::next(run.steps.rbegin())->first;
  std::erase_if(steps, [&](int64_t step) { return step <= last || step - last < interval; });
}

}  // namespace

double RelativeDifference(double a, double b) {
  if (SameBits(a, b) || a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

double Difference(double a, double b, bool absolute) {
  const double relative = RelativeDifference(a, b);
  return absolute && std::isfinite(relative) ? std::abs(a - b) : relative;
}

std::vector<int64_t> CommonSteps(const RunRecords& a, const RunRecords& b,
                                 const RunComparison& comparison) {
  std::vector<int64_t> steps;
  for (const auto& [step, record] : a.steps) {
    const bool in_range = comparison.first_step <= step && step <= comparison.last_step;
    if (in_range && b.steps.contains(step)) steps.push_back(step);
  }
  return steps;
}

double SpeedRatio(const RunRecords& a, const RunRecords& b, const RunComparison& comparison) {
  std::vector<double> of_a, of_b;
  for (const int64_t step : CommonSteps(a, b, comparison)) {
    of_a.push_back(a.steps.at(step).tokens_per_second);
    of_b.push_back(b.steps.at(step).tokens_per_second);
  }
  return MedianOfFinite(std::move(of_b)) / MedianOfFinite(std::move(of_a));
}

RunComparison CompareRuns(const RunRecords& a, const RunRecords& b, const CompareOptions& options) {
  RunComparison result{.first_step = options.first_step,
                       .last_step = options.last_step,
                       .tolerance = Tolerance(a, b, options),
                       .absolute = options.absolute,
                       .exact = options.exact};
  const Comparer comparer(result);
  struct Column {
    const char* name;
    double StepRecord::*number;
  };
  constexpr Column kColumns[] = {{"loss", &StepRecord::loss},
                                 {"grad_norm", &StepRecord::grad_norm},
                                 {"lr", &StepRecord::lr},
                                 {"tokens_per_second", &StepRecord::tokens_per_second}};
  const auto quantity_of = [&options](const std::string& name) {
    const bool named = options.judged.contains(name);
    const bool by_default = options.judged.empty() && name != "tokens_per_second";
    return ComparedQuantity{.name = name, .judged = named || by_default, .named = named};
  };
  for (const Column& column : kColumns) result.quantities.push_back(quantity_of(column.name));
  ForEachStep(a.steps, b.steps, options, result.only_a, result.only_b,
              [&](int64_t step, const StepRecord& x, const StepRecord& y) {
                for (size_t i = 0; i < std::size(kColumns); ++i) {
                  double StepRecord::*const number = kColumns[i].number;
                  comparer.Add(step, x.*number, y.*number, a.Rounding(step, number),
                               b.Rounding(step, number), result.quantities[i]);
                }
              });
  ComparedQuantity evaluation = quantity_of("eval_loss");
  ForEachStep(a.evaluation_losses, b.evaluation_losses, options, result.only_a_evaluations,
              result.only_b_evaluations, [&](int64_t step, double x, double y) {
                comparer.Add(step, x, y, a.EvaluationRounding(step), b.EvaluationRounding(step),
                             evaluation);
              });
  RemoveSkipped(b, result.only_a);
  RemoveSkipped(a, result.only_b);
  // A run may well have been made without evaluations, or with others.
  if (a.evaluation_losses.empty() || b.evaluation_losses.empty() || !a.foreign.empty() ||
      !b.foreign.empty()) {
    result.only_a_evaluations.clear();
    result.only_b_evaluations.clear();
  }
  result.quantities.insert(result.quantities.end() - 1, std::move(evaluation));
  return result;
}

bool RunComparison::equal() const {
  return only_a.empty() && only_b.empty() && only_a_evaluations.empty() &&
         only_b_evaluations.empty() && comparable() && first_difference() == nullptr;
}

bool RunComparison::comparable() const {
  return std::ranges::any_of(quantities,
                             [](const ComparedQuantity& quantity) {
                               return quantity.compared > 0 && quantity.name.ends_with("loss");
                             }) &&
         std::ranges::none_of(quantities, [](const ComparedQuantity& quantity) {
           return quantity.named && quantity.compared == 0;
         });
}

const ComparedQuantity* RunComparison::first_difference() const {
  const ComparedQuantity* first = nullptr;
  for (const ComparedQuantity& quantity : quantities) {
    if (!quantity.first_step.has_value()) continue;
    if (first == nullptr || *quantity.first_step < *first->first_step) first = &quantity;
  }
  return first;
}

std::string StepRanges(const std::vector<int64_t>& steps) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < steps.size();) {
    size_t end = i;
    while (end + 1 < steps.size() && steps[end + 1] == steps[end] + 1) ++end;
    ranges.push_back(absl::StrCat(steps[i]));
    if (end == i + 1) ranges.push_back(absl::StrCat(steps[end]));
    if (end > i + 1) absl::StrAppend(&ranges.back(), " to ", steps[end]);
    i = end + 1;
  }
  return JoinFirst(ranges, ", ");
}

}  // namespace tessera
