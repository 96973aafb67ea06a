#include "tools/compare_runs/comparison_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/page/plot.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

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
    const int64_t first = run.steps.begin()->first, last = run.steps.rbegin()->first;
    absl::StrAppend(&text, Counted(run.steps.size(), "step"), " (", first,
                    first == last ? "" : absl::StrCat(" to ", last), ")");
  }
  absl::StrAppend(&text, ", ", Precision(run), run.foreign.empty() ? "" : ", ", run.foreign, "\n");
  for (const std::string& note : run.notes) absl::StrAppend(&text, "   ", note, "\n");
  return text;
}

// Returns about `rows` of `steps`, evenly spaced, with both ends and every first difference.
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

// Returns a number of a run as text; "-" if it is not recorded.
std::string Cell(const RunRecords& run, int64_t step, double StepRecord::*number,
                 const absl::FormatSpec<double>& format) {
  return run.Rounding(step, number) == kNotRecorded
             ? "-"
             : absl::StrFormat(format, run.steps.at(step).*number);
}

// Returns the difference of two runs' numbers; "-" if one is not recorded.
std::string DifferenceCell(const RunRecords& a, const RunRecords& b, int64_t step,
                           double StepRecord::*number, bool absolute) {
  if (a.Rounding(step, number) == kNotRecorded || b.Rounding(step, number) == kNotRecorded) {
    return "-";
  }
  return absl::StrFormat("%.1e",
                         Difference(a.steps.at(step).*number, b.steps.at(step).*number, absolute));
}

std::string StepTable(const RunRecords& a, const RunRecords& b, const RunComparison& comparison,
                      int rows) {
  const std::set<int64_t> shown = ShownSteps(CommonSteps(a, b, comparison), comparison, rows);
  if (shown.empty()) return "";
  const char* difference = comparison.absolute ? "abs.diff." : "rel.diff.";
  std::string text = absl::StrFormat("\n%8s %12s %12s %9s %11s %11s %9s %10s %10s %10s %10s\n",
                                     "step", "loss A", "loss B", difference, "norm A", "norm B",
                                     difference, "lr A", "lr B", "tok/s A", "tok/s B");
  for (const int64_t step : shown) {
    const auto differ = [&](double StepRecord::*number) {
      return DifferenceCell(a, b, step, number, comparison.absolute);
    };
    constexpr auto kLoss = &StepRecord::loss, kNorm = &StepRecord::grad_norm, kLr = &StepRecord::lr,
                   kRate = &StepRecord::tokens_per_second;
    absl::StrAppendFormat(&text, "%8d %12s %12s %9s %11s %11s %9s %10s %10s %10s %10s\n", step,
                          Cell(a, step, kLoss, "%.6f"), Cell(b, step, kLoss, "%.6f"), differ(kLoss),
                          Cell(a, step, kNorm, "%.5g"), Cell(b, step, kNorm, "%.5g"), differ(kNorm),
                          Cell(a, step, kLr, "%.3e"), Cell(b, step, kLr, "%.3e"),
                          Cell(a, step, kRate, "%.0f"), Cell(b, step, kRate, "%.0f"));
  }
  return text;
}

std::string QuantityTable(const RunComparison& comparison) {
  std::string text =
      absl::StrFormat("\n%-18s %9s %11s %19s %9s %19s\n", "quantity", "compared", "equal bits",
                      comparison.absolute ? "largest abs. diff." : "largest rel. diff.", "at step",
                      "first difference");
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

// Returns a sentence that names the records that one run lacks, and says how to compare the rest.
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
  if (!text.empty() && comparison.comparable()) {
    absl::StrAppend(&text, "--first-step=N and --last-step=N compare the steps between\n");
  }
  return text;
}

// Returns a sentence about differences that do not count because numbers were printed with few
// digits.
std::string RoundingText(const RunComparison& comparison) {
  std::vector<std::string> counts;
  for (const ComparedQuantity& quantity : comparison.quantities) {
    if (quantity.judged && quantity.within_rounding > 0) {
      counts.push_back(absl::StrCat(quantity.name, " at ", quantity.within_rounding,
                                    quantity.within_rounding == 1 ? " step" : " steps"));
    }
  }
  if (counts.empty()) return "";
  return absl::StrCat("not counted, since it is less than half a unit of the last digit printed: ",
                      absl::StrJoin(counts, ", "), "\n");
}

const char* WhyNotComparable(const RunComparison& comparison) {
  const auto is_compared = [](const ComparedQuantity& quantity) { return quantity.compared > 0; };
  return std::any_of(comparison.quantities.begin(), comparison.quantities.end(), is_compared)
             ? "no common record of a loss, or of what is judged"
             : "no step in common";
}

std::string ResultText(const RunComparison& comparison) {
  const std::string rule =
      comparison.exact ? "every bit is compared"
                       : absl::StrFormat("%stolerance %.0e", comparison.absolute ? "absolute " : "",
                                         comparison.tolerance);
  if (!comparison.comparable()) {
    return absl::StrCat("the runs cannot be compared: they have ", WhyNotComparable(comparison),
                        "\n");
  }
  if (comparison.equal()) {
    return comparison.exact ? "the runs are equal, bit for bit\n"
                            : absl::StrCat("the runs are equal (", rule, ")\n");
  }
  const ComparedQuantity* first = comparison.first_difference();
  if (first == nullptr) return "the runs differ: one run lacks records that the other has\n";
  return absl::StrFormat(
      "the runs differ first in %s at step %d: %.17g | %.17g, %s diff. %.1e (%s)\n", first->name,
      *first->first_step, first->first_a, first->first_b, comparison.absolute ? "abs." : "rel.",
      Difference(first->first_a, first->first_b, comparison.absolute), rule);
}

Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json RunObject(const RunRecords& run) {
  Json json = {{"path", run.path}, {"steps", run.steps.size()}};
  json["bf16"] = run.bf16.has_value() ? Json(*run.bf16) : Json(nullptr);
  json["notes"] = run.notes;
  json["format"] = run.foreign.empty() ? "metrics.jsonl" : run.foreign;
  return json;
}

Json QuantityObject(const ComparedQuantity& quantity) {
  Json json = {{"judged", quantity.judged},
               {"compared", quantity.compared},
               {"equal_bits", quantity.equal_bits},
               {"largest_difference", Finite(quantity.largest_difference)},
               {"largest_absolute_difference", Finite(quantity.largest_absolute_difference)},
               {"within_rounding", quantity.within_rounding}};
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

// Returns "A" and "B"; more than two are called as their folders are, those of other trainers by
// their names, too.
std::string NameOf(std::span<const RunRecords> runs, size_t run) {
  if (runs.size() == 2) return run == 0 ? "A" : "B";
  const std::filesystem::path path = runs[run].path;
  const std::filesystem::path folder = path.parent_path().filename();
  return (runs[run].foreign.empty() ? folder : folder / path.filename()).string();
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

Panel Differences(const char* title, std::span<const RunRecords> runs,
                  std::span<const RunComparison> comparisons, double StepRecord::*value) {
  Panel panel{title, "step", "relative difference", true, {}};
  for (size_t run = 1; run < runs.size(); ++run) {
    Curve& curve = panel.curves.emplace_back();
    curve.name = runs.size() == 2 ? "difference" : NameOf(runs, run);
    for (const int64_t step : CommonSteps(runs[0], runs[run], comparisons[run - 1])) {
      if (runs[0].Rounding(step, value) == kNotRecorded ||
          runs[run].Rounding(step, value) == kNotRecorded) {
        continue;
      }
      const double difference =
          RelativeDifference(runs[0].steps.at(step).*value, runs[run].steps.at(step).*value);
      if (std::isfinite(difference)) curve.points.emplace_back(step, difference);
    }
  }
  return panel;
}

// Returns any name as code within a table of GitHub's Markdown.
std::string MarkdownName(const std::string& name) {
  const auto is_control = [](char c) { return absl::ascii_iscntrl(static_cast<uint8_t>(c)); };
  if (name.find_first_of("|`\\") == name.npos && !name.empty() &&
      std::none_of(name.begin(), name.end(), is_control)) {
    return absl::StrCat("`", name, "`");
  }
  std::string text = "<code>";
  for (const char c : name) {
    if (is_control(c)) {
      text += '?';
    } else if (absl::ascii_ispunct(static_cast<uint8_t>(c))) {
      absl::StrAppend(&text, "&#", static_cast<int>(c), ";");
    } else {
      text += c;
    }
  }
  return text + "</code>";
}

std::string MarkdownLoss(int64_t step, double loss) {
  return absl::StrFormat("%.6g (step %d)", loss, step);
}

// Returns the cells of a run that do not depend on the others: its last loss, up to a step, and its
// last evaluation.
std::string MarkdownLosses(const RunRecords& run, int64_t last_step) {
  std::string text;
  auto step = run.steps.upper_bound(last_step);
  while (step != run.steps.begin()) {
    --step;
    if (run.Rounding(step->first, &StepRecord::loss) == kNotRecorded) continue;
    text = MarkdownLoss(step->first, step->second.loss);
    break;
  }
  const auto evaluation = run.evaluation_losses.upper_bound(last_step);
  const bool has_evaluation = evaluation != run.evaluation_losses.begin();
  return absl::StrCat(
      text.empty() ? "-" : text, " | ",
      has_evaluation ? MarkdownLoss(std::prev(evaluation)->first, std::prev(evaluation)->second)
                     : "-");
}

std::string MarkdownVerdict(const RunComparison& comparison) {
  if (!comparison.comparable()) {
    return absl::StrCat("**not comparable**: ", WhyNotComparable(comparison));
  }
  const std::string rule = comparison.exact
                               ? "bit for bit"
                               : absl::StrFormat("within %.0e%s", comparison.tolerance,
                                                 comparison.absolute ? " absolute" : "");
  if (comparison.equal()) return absl::StrCat("equal, ", rule);
  const ComparedQuantity* first = comparison.first_difference();
  if (first != nullptr) return absl::StrCat("**differs** in `", first->name, "`, not ", rule);
  std::string text = "**differs**";
  const auto add = [&text](const char* what, const std::vector<int64_t>& steps, const char* more) {
    if (!steps.empty()) absl::StrAppend(&text, what, StepRanges(steps), more);
  };
  add(", lacks steps ", comparison.only_a, "");
  add(", has steps ", comparison.only_b, " more");
  add(", lacks evaluations ", comparison.only_a_evaluations, "");
  add(", has evaluations ", comparison.only_b_evaluations, " more");
  return text;
}

std::string MarkdownRow(const RunRecords& baseline, const RunRecords& run,
                        const RunComparison& comparison) {
  const ComparedQuantity& loss = comparison.quantities[0];
  const ComparedQuantity* first = comparison.first_difference();
  const double speed = SpeedRatio(baseline, run, comparison);
  return absl::StrCat("| ", MarkdownName(run.path), " | ", loss.compared, " | ",
                      first == nullptr ? "-" : absl::StrCat(*first->first_step), " | ",
                      loss.largest_absolute_difference == 0
                          ? absl::StrCat(loss.compared > 0 ? "0" : "-")
                          : absl::StrFormat("%.1e (step %d)", loss.largest_absolute_difference,
                                            loss.largest_absolute_step),
                      " | ", MarkdownLosses(run, loss.compared > 0 ? loss.last_step : INT64_MAX),
                      " | ", std::isfinite(speed) ? absl::StrFormat("%.2f", speed) : "-", " | ",
                      MarkdownVerdict(comparison), " |\n");
}

}  // namespace

std::string ComparisonText(const RunRecords& a, const RunRecords& b,
                           const RunComparison& comparison, int rows) {
  return absl::StrCat(DescribeRecords("A", a), DescribeRecords("B", b),
                      StepTable(a, b, comparison, rows), QuantityTable(comparison), "\n",
                      MissingText(comparison), RoundingText(comparison), ResultText(comparison));
}

std::string ComparisonJson(const RunRecords& a, const RunRecords& b,
                           const RunComparison& comparison) {
  Json json = {{"equal", comparison.equal()},
               {"comparable", comparison.comparable()},
               {"exact", comparison.exact},
               {"absolute", comparison.absolute},
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
  for (const int64_t step : CommonSteps(a, b, comparison)) {
    steps.push_back(StepObject(step, a.steps.at(step), b.steps.at(step)));
  }
  return json.dump(2) + "\n";
}

std::string ComparisonMarkdown(std::span<const RunRecords> runs,
                               std::span<const RunComparison> comparisons) {
  std::string text = absl::StrCat(
      "| run | steps compared | first difference | largest loss difference | final loss "
      "| eval loss | tokens/s ratio | verdict |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n| ",
      MarkdownName(runs[0].path), " | | | | ", MarkdownLosses(runs[0], INT64_MAX),
      " | | baseline |\n");
  for (size_t i = 0; i < comparisons.size(); ++i) {
    text += MarkdownRow(runs[0], runs[i + 1], comparisons[i]);
  }
  std::string notes;
  for (const RunRecords& run : runs) {
    for (const std::string& note : run.notes) {
      absl::StrAppend(&notes, "- ", MarkdownName(run.path), ": ", MarkdownName(note), "\n");
    }
  }
  return absl::StrCat(text, notes.empty() ? "" : "\n", notes);
}

std::string ComparisonSvg(std::span<const RunRecords> runs,
                          std::span<const RunComparison> comparisons) {
  std::vector<Panel> panels = {Values("loss", runs, &StepRecord::loss),
                               Differences("loss", runs, comparisons, &StepRecord::loss)};
  if (runs.size() > 2) {
    return PlotSvg(absl::StrCat(NameOf(runs, 0), ", and the differences of others from it"), panels,
                   /*columns=*/2);
  }
  panels.push_back(Values("gradient norm", runs, &StepRecord::grad_norm));
  panels.push_back(Differences("gradient norm", runs, comparisons, &StepRecord::grad_norm));
  panels.push_back(Values("learning rate", runs, &StepRecord::lr));
  panels.push_back(Values("tokens/s", runs, &StepRecord::tokens_per_second));
  return PlotSvg(absl::StrCat("A: ", runs[0].path, "   B: ", runs[1].path), panels, /*columns=*/2);
}

}  // namespace tessera
