#include "tools/compare_runs/comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The values of two runs at the steps that both have recorded.
class Comparer {
 public:
  explicit Comparer(const RunComparison& rule) : rule_(rule) {}

  void Add(int64_t step, double a, double b, ComparedQuantity& quantity) const {
    ++quantity.compared;
    const bool same = SameBits(a, b);
    if (same) ++quantity.equal_bits;
    const double difference = RelativeDifference(a, b);
    if (difference > quantity.largest_difference) {
      quantity.largest_difference = difference;
      quantity.largest_step = step;
    }
    const bool permitted = rule_.exact ? same : difference <= rule_.tolerance;
    if (permitted || !quantity.judged || quantity.first_step.has_value()) return;
    quantity.first_step = step;
    quantity.first_a = a;
    quantity.first_b = b;
  }

 private:
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
  return a.bf16.value_or(false) || b.bf16.value_or(false) ? kBf16Tolerance : kFp32Tolerance;
}

}  // namespace

double RelativeDifference(double a, double b) {
  if (SameBits(a, b) || a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

RunComparison CompareRuns(const RunRecords& a, const RunRecords& b, const CompareOptions& options) {
  RunComparison result{.tolerance = Tolerance(a, b, options), .exact = options.exact};
  const Comparer comparer(result);
  ComparedQuantity loss{.name = "loss"}, norm{.name = "grad_norm"}, lr{.name = "lr"};
  ComparedQuantity rate{.name = "tokens_per_second", .judged = false};
  ForEachStep(a.steps, b.steps, options, result.only_a, result.only_b,
              [&](int64_t step, const StepRecord& x, const StepRecord& y) {
                comparer.Add(step, x.loss, y.loss, loss);
                comparer.Add(step, x.grad_norm, y.grad_norm, norm);
                comparer.Add(step, x.lr, y.lr, lr);
                comparer.Add(step, x.tokens_per_second, y.tokens_per_second, rate);
              });
  ComparedQuantity evaluation{.name = "eval_loss"};
  ForEachStep(a.evaluation_losses, b.evaluation_losses, options, result.only_a_evaluations,
              result.only_b_evaluations,
              [&](int64_t step, double x, double y) { comparer.Add(step, x, y, evaluation); });
  // A run may well have been made without evaluations.
  if (a.evaluation_losses.empty() || b.evaluation_losses.empty()) {
    result.only_a_evaluations.clear();
    result.only_b_evaluations.clear();
  }
  result.quantities = {std::move(loss), std::move(norm), std::move(lr), std::move(evaluation),
                       std::move(rate)};
  return result;
}

bool RunComparison::equal() const {
  const auto compared = [](const ComparedQuantity& quantity) { return quantity.compared > 0; };
  return only_a.empty() && only_b.empty() && only_a_evaluations.empty() &&
         only_b_evaluations.empty() &&
         std::any_of(quantities.begin(), quantities.end(), compared) &&
         first_difference() == nullptr;
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
  std::string text;
  for (size_t i = 0; i < steps.size();) {
    size_t end = i;
    while (end + 1 < steps.size() && steps[end + 1] == steps[end] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ", ", steps[i]);
    if (end > i) absl::StrAppend(&text, end == i + 1 ? ", " : " to ", steps[end]);
    i = end + 1;
  }
  return text;
}

}  // namespace tessera
