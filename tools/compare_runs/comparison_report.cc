#include "tools/compare_runs/comparison_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/plot.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::string Precision(const RunRecords& run) {
  return !run.bf16.has_value() ? "precision not known" : *run.bf16 ? "bf16" : "fp32";
}

std::string DescribeRecords(const char* name, const RunRecords& run) {
  std::string text = absl::StrCat(name, "  ", run.path, ": ");
  if (run.steps.empty()) {
    absl::StrAppend(&text, "evaluations only");
  } else {
    absl::StrAppend(&text, run.steps.size(), run.steps.size() == 1 ? " step" : " steps", " (",
                    run.steps.begin()->first, " to ", run.steps.rbegin()->first, ")");
  }
  absl::StrAppend(&text, ", ", Precision(run), "\n");
  for (const std::string& note : run.notes) absl::StrAppend(&text, "   ", note, "\n");
  return text;
}

std::vector<int64_t> CommonSteps(const RunRecords& a, const RunRecords& b) {
  std::vector<int64_t> steps;
  for (const auto& [step, record] : a.steps) {
    if (b.steps.contains(step)) steps.push_back(step);
  }
  return steps;
}

// About `rows` of `steps`, spread evenly, the ends and every first difference included.
std::set<int64_t> ShownSteps(const std::vector<int64_t>& steps, const RunComparison& comparison,
                             int rows) {
  std::set<int64_t> shown;
  if (steps.empty() || rows <= 0) return shown;
  const size_t count = std::min(steps.size(), static_cast<size_t>(rows));
  for (size_t i = 0; i < count; ++i) {
    shown.insert(steps[count == 1 ? 0 : i * (steps.size() - 1) / (count - 1)]);
  }
  const std::set<int64_t> common(steps.begin(), steps.end());
  for (const ComparedQuantity& quantity : comparison.quantities) {
    if (quantity.first_step.has_value() && common.contains(*quantity.first_step)) {
      shown.insert(*quantity.first_step);
    }
  }
  return shown;
}

std::string StepTable(const RunRecords& a, const RunRecords& b, const RunComparison& comparison,
                      int rows) {
  const std::set<int64_t> shown = ShownSteps(CommonSteps(a, b), comparison, rows);
  if (shown.empty()) return "";
  std::string text = absl::StrFormat("\n%8s %12s %12s %9s %11s %11s %9s %10s %10s %10s %10s\n",
                                     "step", "loss A", "loss B", "rel.diff.", "norm A", "norm B",
                                     "rel.diff.", "lr A", "lr B", "tok/s A", "tok/s B");
  for (const int64_t step : shown) {
    const StepRecord& x = a.steps.at(step);
    const StepRecord& y = b.steps.at(step);
    absl::StrAppendFormat(&text,
                          "%8d %12.6f %12.6f %9.1e %11.5g %11.5g %9.1e %10.3e %10.3e %10.0f "
                          "%10.0f\n",
                          step, x.loss, y.loss, RelativeDifference(x.loss, y.loss), x.grad_norm,
                          y.grad_norm, RelativeDifference(x.grad_norm, y.grad_norm), x.lr, y.lr,
                          x.tokens_per_second, y.tokens_per_second);
  }
  return text;
}

std::string QuantityTable(const RunComparison& comparison) {
  std::string text =
      absl::StrFormat("\n%-18s %9s %11s %19s %9s %19s\n", "quantity", "compared", "equal bits",
                      "largest rel. diff.", "at step", "first difference");
  for (const ComparedQuantity& quantity : comparison.quantities) {
    if (quantity.compared == 0) continue;
    const std::string at = quantity.largest_step == 0 && quantity.largest_difference == 0
                               ? "-"
                               : absl::StrCat(quantity.largest_step);
    const std::string first = !quantity.judged ? "(not judged)"
                              : !quantity.first_step.has_value()
                                  ? "-"
                                  : absl::StrCat(*quantity.first_step);
    absl::StrAppendFormat(&text, "%-18s %9d %11d %19.1e %9s %19s\n", quantity.name,
                          quantity.compared, quantity.equal_bits, quantity.largest_difference, at,
                          first);
  }
  return text;
}

// Which records one run lacks, and how to compare the rest.
std::string MissingText(const RunComparison& comparison) {
  std::string text;
  const auto add = [&text](const char* what, const std::vector<int64_t>& steps, const char* run) {
    if (steps.empty()) return;
    absl::StrAppend(&text, what, steps.size() == 1 ? " " : "s ", StepRanges(steps), ": only in ",
                    run, "\n");
  };
  add("step", comparison.only_a, "A");
  add("step", comparison.only_b, "B");
  add("evaluation", comparison.only_a_evaluations, "A");
  add("evaluation", comparison.only_b_evaluations, "B");
  if (!text.empty()) {
    absl::StrAppend(&text, "--first-step=N and --last-step=N compare the steps between\n");
  }
  return text;
}

std::string ResultText(const RunComparison& comparison) {
  const std::string rule = comparison.exact
                               ? "every bit is compared"
                               : absl::StrFormat("tolerance %.0e", comparison.tolerance);
  if (comparison.equal()) {
    return comparison.exact ? "the runs are equal, bit for bit\n"
                            : absl::StrCat("the runs are equal (", rule, ")\n");
  }
  const ComparedQuantity* first = comparison.first_difference();
  if (first == nullptr) return "the runs differ: a run lacks records of the other\n";
  return absl::StrFormat(
      "the runs differ first in %s at step %d: %.17g | %.17g, rel. diff. %.1e (%s)\n", first->name,
      *first->first_step, first->first_a, first->first_b,
      RelativeDifference(first->first_a, first->first_b), rule);
}

Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json RunObject(const RunRecords& run) {
  Json json = {{"path", run.path}, {"steps", run.steps.size()}};
  json["bf16"] = run.bf16.has_value() ? Json(*run.bf16) : Json(nullptr);
  json["notes"] = run.notes;
  return json;
}

Json QuantityObject(const ComparedQuantity& quantity) {
  Json json = {{"judged", quantity.judged},
               {"compared", quantity.compared},
               {"equal_bits", quantity.equal_bits},
               {"largest_difference", Finite(quantity.largest_difference)}};
  json["first_difference"] =
      quantity.first_step.has_value() ? Json(*quantity.first_step) : Json(nullptr);
  return json;
}

Json StepObject(int64_t step, const StepRecord& a, const StepRecord& b) {
  const auto pair = [](double x, double y) { return Json::array({Finite(x), Finite(y)}); };
  return {{"step", step},
          {"loss", pair(a.loss, b.loss)},
          {"grad_norm", pair(a.grad_norm, b.grad_norm)},
          {"lr", pair(a.lr, b.lr)},
          {"tokens_per_second", pair(a.tokens_per_second, b.tokens_per_second)}};
}

// "A" and "B"; more than two are called as their folders are.
std::string NameOf(std::span<const RunRecords> runs, size_t run) {
  if (runs.size() == 2) return run == 0 ? "A" : "B";
  return std::filesystem::path(runs[run].path).parent_path().filename();
}

Panel Values(const char* title, std::span<const RunRecords> runs, double StepRecord::*value) {
  Panel panel{title, "step", title, false, {}};
  for (size_t run = 0; run < runs.size(); ++run) {
    Curve& curve = panel.curves.emplace_back();
    curve.name = NameOf(runs, run);
    for (const auto& [step, record] : runs[run].steps) {
      if (std::isfinite(record.*value)) curve.points.emplace_back(step, record.*value);
    }
  }
  return panel;
}

Panel Differences(const char* title, std::span<const RunRecords> runs, double StepRecord::*value) {
  Panel panel{title, "step", "relative difference", true, {}};
  for (size_t run = 1; run < runs.size(); ++run) {
    Curve& curve = panel.curves.emplace_back();
    curve.name = runs.size() == 2 ? "difference" : NameOf(runs, run);
    for (const int64_t step : CommonSteps(runs[0], runs[run])) {
      const double difference =
          RelativeDifference(runs[0].steps.at(step).*value, runs[run].steps.at(step).*value);
      if (std::isfinite(difference)) curve.points.emplace_back(step, difference);
    }
  }
  return panel;
}

}  // namespace

std::string ComparisonText(const RunRecords& a, const RunRecords& b,
                           const RunComparison& comparison, int rows) {
  return absl::StrCat(DescribeRecords("A", a), DescribeRecords("B", b),
                      StepTable(a, b, comparison, rows), QuantityTable(comparison), "\n",
                      MissingText(comparison), ResultText(comparison));
}

std::string ComparisonJson(const RunRecords& a, const RunRecords& b,
                           const RunComparison& comparison) {
  Json json = {{"equal", comparison.equal()},
               {"exact", comparison.exact},
               {"tolerance", comparison.tolerance},
               {"a", RunObject(a)},
               {"b", RunObject(b)},
               {"only_a", comparison.only_a},
               {"only_b", comparison.only_b},
               {"only_a_evaluations", comparison.only_a_evaluations},
               {"only_b_evaluations", comparison.only_b_evaluations}};
  Json& quantities = json["quantities"] = Json::object();
  for (const ComparedQuantity& quantity : comparison.quantities) {
    quantities[quantity.name] = QuantityObject(quantity);
  }
  Json& steps = json["steps"] = Json::array();
  for (const int64_t step : CommonSteps(a, b)) {
    steps.push_back(StepObject(step, a.steps.at(step), b.steps.at(step)));
  }
  return json.dump(2) + "\n";
}

std::string ComparisonSvg(std::span<const RunRecords> runs) {
  std::vector<Panel> panels = {Values("loss", runs, &StepRecord::loss),
                               Differences("loss", runs, &StepRecord::loss)};
  if (runs.size() > 2) {
    return PlotSvg(absl::StrCat(NameOf(runs, 0), ", and the differences of others from it"), panels,
                   /*columns=*/2);
  }
  panels.push_back(Values("gradient norm", runs, &StepRecord::grad_norm));
  panels.push_back(Differences("gradient norm", runs, &StepRecord::grad_norm));
  panels.push_back(Values("learning rate", runs, &StepRecord::lr));
  panels.push_back(Values("tokens/s", runs, &StepRecord::tokens_per_second));
  return PlotSvg(absl::StrCat("A: ", runs[0].path, "   B: ", runs[1].path), panels, /*columns=*/2);
}

}  // namespace tessera
