#include "trainer/report/step_curves.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "trainer/metrics/record_fields.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr size_t kTimeStretches = 100;

// Memory is one number, or one by rank or by kind.
double Sum(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_structured()) return kNone;
  double sum = 0;
  for (const Json& part : value) sum += part.is_number() ? part.get<double>() : 0;
  return sum;
}

}  // namespace

// Six digits are less than a pixel.
Json RoundedNumber(double value) {
  if (!std::isfinite(value)) return Json();
  double rounded = value;
  return absl::SimpleAtod(absl::StrFormat("%.6g", value), &rounded) ? rounded : value;
}

RecordedStep ReadStep(int64_t number, const Json& record) {
  RecordedStep step{.step = number};
  const auto skipped = record.find("skipped");
  step.skipped = skipped != record.end() && *skipped == true;
  for (size_t i = 0; i < kCurves.size(); ++i) step.values[i] = NumberOf(record, kCurves[i]);
  if (const auto memory = record.find("memory_bytes"); memory != record.end()) {
    constexpr size_t kMemory = CurveIndex("memory_bytes");
    step.values[kMemory] = Sum(*memory);
  }
  const auto time = record.find("time");
  const bool has_time = time != record.end() && time->is_object();
  for (size_t i = 0; i < kTimes.size(); ++i) {
    step.seconds[i] = has_time ? NumberOf(*time, kTimes[i]) : kNone;
  }
  return step;
}

void KeepLast(std::vector<RecordedStep>& steps) {
  std::ranges::stable_sort(steps, {}, &RecordedStep::step);
  std::vector<RecordedStep> kept;
  for (const RecordedStep& step : steps) {
    if (!kept.empty() && kept.back().step == step.step) kept.pop_back();
    kept.push_back(step);
  }
  steps = std::move(kept);
}

std::vector<size_t> ThinSteps(const std::vector<RecordedStep>& steps, int64_t max_points) {
  std::set<size_t> chosen;
  const size_t all = steps.size();
  // Each stretch has up to three points of each telling curve.
  const size_t stretches =
      std::max<size_t>(1, static_cast<size_t>(max_points) / (3 * kTellingCurves));
  for (size_t s = 0; s < stretches && all > static_cast<size_t>(max_points); ++s) {
    const size_t begin = all * s / stretches, end = all * (s + 1) / stretches;
    for (size_t curve = 0; curve < kTellingCurves && begin < end; ++curve) {
      size_t least = all, most = all, missing = all;
      for (size_t i = begin; i < end; ++i) {
        const double value = steps[i].values[curve];
        if (!std::isfinite(value)) {
          missing = std::min(missing, i);
          continue;
        }
        if (least == all || value < steps[least].values[curve]) least = i;
        if (most == all || value > steps[most].values[curve]) most = i;
      }
      for (const size_t index : {least, most, missing}) {
        if (index < all) chosen.insert(index);
      }
    }
  }
  if (all <= static_cast<size_t>(max_points)) {
    for (size_t i = 0; i < all; ++i) chosen.insert(i);
  } else {
    chosen.insert(0);
    chosen.insert(all - 1);
  }
  return {chosen.begin(), chosen.end()};
}

Json CurveColumns(const std::vector<RecordedStep>& steps, const std::vector<size_t>& chosen) {
  Json columns = {{"step", Json::array()}};
  for (const size_t i : chosen) columns["step"].push_back(steps[i].step);
  for (size_t curve = 0; curve < kCurves.size(); ++curve) {
    Json column = Json::array();
    bool any = false;
    for (const size_t i : chosen) {
      const double value = steps[i].values[curve];
      any |= std::isfinite(value);
      column.push_back(RoundedNumber(value));
    }
    if (any) columns[kCurves[curve]] = std::move(column);
  }
  return columns;
}

std::vector<double> CurveValues(const std::vector<RecordedStep>& steps, std::string_view curve) {
  const size_t index = CurveIndex(curve);
  std::vector<double> values;
  for (const RecordedStep& step : steps) {
    if (std::isfinite(step.values[index])) values.push_back(step.values[index]);
  }
  return values;
}

Json TimeStretches(const std::vector<RecordedStep>& steps, int64_t every) {
  std::vector<const RecordedStep*> timed;
  for (const RecordedStep& step : steps) {
    if (std::ranges::any_of(step.seconds, [](double s) { return std::isfinite(s); })) {
      timed.push_back(&step);
    }
  }
  Json time = Json::object();
  const size_t stretches = std::min(kTimeStretches, timed.size());
  for (size_t s = 0; s < stretches; ++s) {
    const size_t begin = timed.size() * s / stretches, end = timed.size() * (s + 1) / stretches;
    time["first"].push_back(timed[begin]->step);
    time["last"].push_back(timed[end - 1]->step);
    for (size_t kind = 0; kind < kTimes.size(); ++kind) {
      double sum = 0;
      for (size_t i = begin; i < end; ++i) {
        const double seconds = timed[i]->seconds[kind];
        sum += std::isfinite(seconds) ? std::max(0.0, seconds) : 0;
      }
      time[kTimes[kind]].push_back(RoundedNumber(sum * static_cast<double>(every)));
    }
  }
  return time;
}

}  // namespace tessera
