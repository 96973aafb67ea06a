#ifndef TESSERA_TRAINER_REPORT_STEP_CURVES_H_
#define TESSERA_TRAINER_REPORT_STEP_CURVES_H_

// The steps of a run as curves: what a page shows of the records of steps in metrics.jsonl.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace tessera {

// The value of a curve at a step that does not have one.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Fields of a step's record that become curves. Thinning keeps the extremes of the first ones.
inline constexpr std::array<std::string_view, 9> kCurves = {
    "loss",       "grad_norm",    "tokens_per_second", "memory_bytes",       "lr",
    "peak_share", "step_seconds", "wire_bytes",        "pipeline_wait_share"};
inline constexpr size_t kTellingCurves = 4;

// Returns the place of a curve in kCurves, which must have it.
constexpr size_t CurveIndex(std::string_view curve) {
  size_t index = 0;
  while (kCurves.at(index) != curve) ++index;
  return index;
}

// What the seconds of a step were spent for.
inline constexpr std::array<std::string_view, 4> kTimes = {"compute", "communication", "waiting",
                                                           "saving"};

struct RecordedStep {
  int64_t step = 0;
  bool skipped = false;  // nothing was updated
  std::array<double, kCurves.size()> values;
  std::array<double, kTimes.size()> seconds;
};

// Returns the number that a page shows, which is null if it is not finite.
nlohmann::json RoundedNumber(double value);

// Returns the values of a step's record.
RecordedStep ReadStep(int64_t number, const nlohmann::json& record);

// Orders by step. If a step has two records, the later one is kept: later steps follow from it.
void KeepLast(std::vector<RecordedStep>& steps);

// Returns the indices of the steps that are drawn, ascending.
std::vector<size_t> ThinSteps(const std::vector<RecordedStep>& steps, int64_t max_points);

// Returns the curves of these steps, by name.
nlohmann::json CurveColumns(const std::vector<RecordedStep>& steps,
                            const std::vector<size_t>& chosen);

// Returns the finite values of a curve.
std::vector<double> CurveValues(const std::vector<RecordedStep>& steps, std::string_view curve);

// Returns the split of the steps' time. `every`: the number of steps that each one stands for.
nlohmann::json TimeStretches(const std::vector<RecordedStep>& steps, int64_t every);

}  // namespace tessera

#endif  // TESSERA_TRAINER_REPORT_STEP_CURVES_H_
