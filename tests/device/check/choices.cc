#include "tests/device/check/choices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "compute/kernels/backend.h"
#include "models/testing/profiling_backend.h"
#include "tests/device/check/operations.h"
#include "tests/device/check/trained_by_choice.h"
#include "tests/device/check/training_checks.h"

namespace tessera::testing {
namespace {

constexpr double kShownChange = 0.02;
// A way is chosen if it gains this part of a step, in both of its trainings.
constexpr double kLeastGain = 0.005;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kComparedProposals = 8;
constexpr char kAsIs[] = "as is";
constexpr int64_t kStepsOfAWay = 5;
// What a way takes, in trainings: three, and its checks, of which nothing is known at first.
constexpr double kTrainingsToCompare = 3, kTrainingsOfAWay = kTrainingsToCompare + 2;

cuda::ProductChoices Toggled(cuda::ProductChoices choices, const cuda::Way& way) {
  choices.*way.member = !(choices.*way.member);
  return choices;
}

// Also measures the operations, each of which is waited for.
absl::Status ProfileAgain(TrainingDevice& device, const TimedModel& model,
                          const std::string& folder, TrainedByChoice* trained) {
  auto owned = std::make_unique<ProfilingBackend>(*device.backend);
  ProfilingBackend& profiling = *owned;
  const WithBackend profiled(device, std::move(owned));
  return TrainAgain(device, model, folder, trained, [&] {
    for (const auto& [name, total] : profiling.Take()) {
      const auto [least, first] = trained->milliseconds.emplace(name, 1e3 * total.seconds);
      if (!first) least->second = std::min(least->second, 1e3 * total.seconds);
    }
  });
}

struct MeasuredProduct {
  MeasuredProduct() { seconds.fill(kNever); }
  int64_t calls = 0;                               // while the first proposals were taken
  std::array<double, kComparedProposals> seconds;  // of the fastest call, by proposal
};

// Trains by one proposal. Products that have fewer are not measured. Counts the steps of the first.
absl::Status MeasureProposal(TrainingDevice& device, const TimedModel& model,
                             const std::string& folder, size_t proposal,
                             std::map<std::string, MeasuredProduct>* products, int64_t* steps) {
  cuda::ProductChoices choices = device.choices;
  choices.measured = nullptr;
  choices.proposal = static_cast<int>(proposal);
  choices.timer.add = [&](const std::string& name, int taken, double seconds) {
    if (static_cast<size_t>(taken) != proposal) return;
    MeasuredProduct& product = (*products)[name];
    product.calls += proposal == 0 ? 1 : 0;
    product.seconds[proposal] = std::min(product.seconds[proposal], seconds);
  };
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, device.make_backend(choices));
  const WithBackend chosen(device, std::move(backend));
  TrainedByChoice trained;
  return TrainAgain(device, model, folder, &trained, [&] { *steps += proposal == 0 ? 1 : 0; });
}

// Returns the user's table. Fails here rather than after all measurements.
absl::StatusOr<std::string> WritableTable(const std::string& device) {
  TESSERA_ASSIGN_OR_RETURN(const std::string path, cuda::ProductTablePath());
  TESSERA_RETURN_IF_ERROR(cuda::AddProposals(path, device, {}));
  return path;
}

// Adds what became of a measurement that was written to the table to its outcome.
void AddWritten(const absl::Status& written, const std::string& text, CheckOutcome* outcome) {
  if (!written.ok()) outcome->kind = CheckOutcome::kFailed;
  absl::StrAppend(&outcome->detail, "\n",
                  written.ok() ? text : absl::StrCat("not written: ", written.message()));
}

// Whether the two compute attention in the same way.
bool AttendAlike(const cuda::ProductChoices& a, const cuda::ProductChoices& b) {
  const auto way = [](const cuda::ProductChoices& choices) {
    return std::tuple(choices.attention_at_once, choices.attention_by_warpgroups,
                      choices.attention_gradients_by_warpgroups);
  };
  return way(a) == way(b);
}

enum Round { kChecked, kProfiled, kTimed };

// A choice that has failed is left out from then on, and if the device has, each that trains later.
std::vector<TrainedByChoice> TrainByChoices(TrainingDevice& device,
                                            const std::vector<Choice>& choices,
                                            const TimedModel& model, const std::string& folder,
                                            const ChoiceCheck& check) {
  std::vector<TrainedByChoice> trained(choices.size());
  for (const Round round : {kChecked, kProfiled, kTimed}) {
    for (size_t i = 0; i < choices.size(); ++i) {
      if (!trained[i].status.ok()) continue;
      if (round != kChecked && device.context->runtime().HasFailed()) {
        trained[i].status = absl::InternalError(kDeviceHasFailed);
        trained[i].left_out = true;
        continue;
      }
      trained[i].status =
          round == kChecked ? check(choices[i]) : WithChoice(device, choices[i].products, [&] {
            return round == kProfiled ? ProfileAgain(device, model, folder, &trained[i])
                                      : TrainAgain(device, model, folder, &trained[i]);
          });
      trained[i].left_out = absl::IsDeadlineExceeded(trained[i].status);
    }
  }
  return trained;
}

// What is known of ways so far. The device computes in those that were chosen.
class WayMeasurement {
 public:
  // The arguments outlive it.
  WayMeasurement(TrainingDevice& device, const TimedModel& model, const std::string& folder,
                 const ChoiceCheck& check, const Deadline& deadline, double reserved_seconds)
      : device_(device),
        model_(model),
        folder_(folder),
        check_(check),
        deadline_(deadline),
        reserved_seconds_(reserved_seconds) {
    model_.steps = kStepsOfAWay;
  }

  absl::Status TrainAsIs();
  // Compares a way, unless the device has failed, or losses without another way were not as before.
  void Measure(const cuda::Way& way);
  // Writes what was compared, if all of it can be trusted, to the table at `path`.
  CheckOutcome Written(const std::string& path, const std::string& device_name);

 private:
  // DeadlineExceeded if no time is left for it, or for training after it.
  absl::Status CheckInTime(const Choice& choice);
  // Trains, and keeps the least rate.
  absl::Status TrainWith(const cuda::ProductChoices& choices, TrainedByChoice* trained,
                         double* rate);
  absl::Status Choose(const cuda::ProductChoices& choices);

  TrainingDevice& device_;
  TimedModel model_;
  const std::string& folder_;
  const ChoiceCheck& check_;
  const Deadline& deadline_;
  const double reserved_seconds_;          // for what comes after
  TrainedByChoice now_;                    // in the chosen ways
  double training_ = 0, way_longest_ = 0;  // seconds
  std::string stopped_;                    // why no other way can be compared; empty: one can
  cuda::Ways chosen_;
  std::map<std::string, std::optional<bool>> compared_;  // the value of each that was chosen
  CheckOutcome outcome_ = {CheckOutcome::kLeftOut, "", {}};
};

absl::Status WayMeasurement::TrainAsIs() {
  const absl::Duration start = SteadyNow();
  TESSERA_RETURN_IF_ERROR(TrainAgain(device_, model_, folder_, &now_));
  training_ = SecondsSince(start);
  way_longest_ = kTrainingsOfAWay * training_;
  outcome_.detail =
      absl::StrFormat("%s, as is: %.0f tokens/s", model_.name, now_.tokens_per_second);
  outcome_.figures["tokens_per_second, as is"] = now_.tokens_per_second;
  return absl::OkStatus();
}

absl::Status WayMeasurement::CheckInTime(const Choice& choice) {
  const absl::Status late = absl::DeadlineExceededError(deadline_.LeftOut().detail);
  if (deadline_.left_seconds() - reserved_seconds_ <= way_longest_) return late;
  TESSERA_RETURN_IF_ERROR(check_(choice));
  return deadline_.left_seconds() < kTrainingsToCompare * training_ ? late : absl::OkStatus();
}

absl::Status WayMeasurement::TrainWith(const cuda::ProductChoices& choices,
                                       TrainedByChoice* trained, double* rate) {
  TESSERA_RETURN_IF_ERROR(
      WithChoice(device_, choices, [&] { return TrainAgain(device_, model_, folder_, trained); }));
  *rate = std::min(*rate, trained->tokens_per_second);
  return absl::OkStatus();
}

absl::Status WayMeasurement::Choose(const cuda::ProductChoices& choices) {
  TESSERA_ASSIGN_OR_RETURN(device_.backend, device_.make_backend(choices));
  device_.choices = choices;
  return absl::OkStatus();
}

void WayMeasurement::Measure(const cuda::Way& way) {
  const cuda::ProductChoices toggled = Toggled(device_.choices, way);
  cuda::Ways candidate = chosen_;
  candidate[way.name] = toggled.*way.member;
  const std::string text = cuda::WaysText(candidate);
  absl::StrAppend(&outcome_.detail, "\n", text, ": ", stopped_.empty() ? "" : "left out, ",
                  stopped_);
  if (!stopped_.empty()) return;
  if (way.member == &cuda::ProductChoices::attention_at_once &&
      toggled.attention_gradients_by_warpgroups) {
    outcome_.detail += "left out, attention's gradients are by warpgroups";
    return;
  }
  const absl::Duration start = SteadyNow();
  absl::Status status = CheckInTime({text, toggled});
  if (absl::IsDeadlineExceeded(status)) {
    absl::StrAppend(&outcome_.detail, "left out, ", status.message());
    return;
  }
  compared_[way.name] = std::nullopt;
  TrainedByChoice trained;
  double with = kNever;
  const auto gains = [&] { return with >= (1 + kLeastGain) * now_.tokens_per_second; };
  // With the way, without it, and with it again: clocks that rise or fall help one side at most.
  if (status.ok()) status = TrainWith(toggled, &trained, &with);
  if (status.ok()) {
    const absl::Status without = TrainAgain(device_, model_, folder_, &now_);
    if (!without.ok()) {
      outcome_.kind = CheckOutcome::kFailed;
      absl::StrAppend(&outcome_.detail, "without it: ", without.message());
      compared_.clear();
      stopped_ = "training without another way has failed";
      return;
    }
    if (gains()) status = TrainWith(toggled, &trained, &with);
  }
  way_longest_ = std::max(way_longest_, SecondsSince(start));
  const bool chosen = status.ok() && gains();
  if (chosen) status = Choose(toggled);
  if (!status.ok()) {
    outcome_.kind = CheckOutcome::kFailed;
    absl::StrAppend(&outcome_.detail, "not chosen: ", status.message());
    if (device_.context->runtime().HasFailed()) stopped_ = kDeviceHasFailed;
    return;
  }
  outcome_.figures["tokens_per_second, " + text] = with;
  absl::StrAppendFormat(&outcome_.detail, "%.0f tokens/s, without %s %.0f: %s", with, way.name,
                        now_.tokens_per_second, chosen ? "chosen" : "not chosen");
  if (!chosen) return;
  chosen_ = candidate;
  compared_[way.name] = candidate[way.name];
  now_ = trained;
}

CheckOutcome WayMeasurement::Written(const std::string& path, const std::string& device_name) {
  if (compared_.empty()) return outcome_;
  // What the table had was not trained beside those that are chosen.
  for (const cuda::Way& way : cuda::kWays) {
    if (!chosen_.empty()) compared_.try_emplace(way.name, std::nullopt);
  }
  if (outcome_.kind == CheckOutcome::kLeftOut) outcome_.kind = CheckOutcome::kPassed;
  AddWritten(
      cuda::SetWays(path, device_name, compared_),
      absl::StrCat("written to ", path, ": ", chosen_.empty() ? "none" : cuda::WaysText(chosen_)),
      &outcome_);
  return outcome_;
}

// A line for each operation that takes another time by another choice.
std::string OperationLines(const std::vector<TrainedByChoice>& trained) {
  std::map<std::string, std::vector<double>> table;
  for (size_t i = 0; i < trained.size(); ++i) {
    for (const auto& [name, milliseconds] : trained[i].milliseconds) {
      table[name].resize(trained.size());
      table[name][i] = milliseconds;
    }
  }
  std::string lines;
  for (const auto& [name, row] : table) {
    const auto changes = [first = row[0]](double milliseconds) {
      return std::abs(milliseconds - first) > kShownChange * first;
    };
    if (std::ranges::none_of(row, changes)) continue;
    absl::StrAppendFormat(&lines, "\n%-44s", name);
    for (const double milliseconds : row) absl::StrAppendFormat(&lines, " %9.3f ms", milliseconds);
  }
  return lines;
}

}  // namespace

std::vector<cuda::Way> WaysOf(const TrainingDevice& device) {
  std::vector<cuda::Way> ways;
  for (const cuda::Way& way : cuda::kWays) {
    if (CheckChoices(device, Toggled(device.choices, way)).ok()) ways.push_back(way);
  }
  return ways;
}

absl::StatusOr<Choice> ParseChoice(const TrainingDevice& device, const std::string& name) {
  cuda::Ways ways;
  for (const absl::string_view text : absl::StrSplit(name, ',')) {
    if (name == kAsIs || cuda::AddWay(std::string(text), &ways)) continue;
    std::string known;
    for (const cuda::Way& way : cuda::kWays) absl::StrAppend(&known, " ", way.name);
    return absl::InvalidArgumentError(
        absl::StrCat("--ways=", name, ": expected NAME=true or NAME=false, of", known));
  }
  const Choice choice = {name, cuda::WithWays(device.choices, ways)};
  TESSERA_RETURN_IF_ERROR(CheckChoices(device, choice.products));
  return choice;
}

std::vector<Choice> ChoicesOf(const TrainingDevice& device) {
  std::vector<Choice> choices = {{kAsIs, device.choices}};
  for (const cuda::Way& way : WaysOf(device)) {
    const cuda::ProductChoices toggled = Toggled(device.choices, way);
    choices.push_back({cuda::WaysText(cuda::Ways{{way.name, toggled.*way.member}}), toggled});
  }
  const cuda::Ways both = {{"gelu_gradient", !device.choices.gelu_gradient},
                           {"sums", !device.choices.sums}};
  choices.push_back({cuda::WaysText(both), cuda::WithWays(device.choices, both)});
  return choices;
}

std::vector<Check> ChecksOfChoice(TrainingDevice& device, const Choice& choice,
                                  const DeviceCheckOptions& options) {
  const TrainingChecks training = {device, options.training, options.folder};
  std::vector<Check> checks = {
      {"gradients", [training] { return OutcomeOf(training.Gradients()); }},
      {"same_bits", [training] { return OutcomeOf(training.SameBits()); }}};
  if (choice.name == kAsIs || !AttendAlike(choice.products, device.choices)) {
    checks.push_back({"attention", [&device, options] {
                        OperationSizes sizes = options.operations;
                        if (sizes.only.empty()) sizes.only = "Attention";
                        return OutcomeOf(CheckOperations(device, sizes, options.training.threads));
                      }});
  }
  return checks;
}

ChoiceCheck CheckHere(TrainingDevice& device, const DeviceCheckOptions& options) {
  return [&device, options](const Choice& choice) {
    return WithChoice(device, choice.products, [&] {
      for (const Check& check : ChecksOfChoice(device, choice, options)) {
        const CheckOutcome outcome = check.run();
        if (outcome.kind != CheckOutcome::kPassed) return absl::InternalError(outcome.detail);
      }
      return absl::OkStatus();
    });
  };
}

ChoiceCheck CheckInProcess(std::vector<std::string> command, const std::string& folder,
                           double seconds, const Deadline& deadline) {
  return [=](const Choice& choice) {
    std::vector<std::string> with_ways = command;
    with_ways.push_back("--ways=" + choice.name);
    const double most = std::min(seconds, deadline.left_seconds());
    const CheckOutcome outcome = RunProgram(with_ways, folder, Deadline(most));
    if (outcome.kind == CheckOutcome::kPassed) return absl::OkStatus();
    if (outcome.kind == CheckOutcome::kLeftOut && most < seconds) {
      return absl::DeadlineExceededError(deadline.LeftOut().detail);
    }
    return absl::InternalError(
        outcome.kind == CheckOutcome::kFailed
            ? outcome.detail
            : absl::StrFormat("its checks have not ended in %.0f s", seconds));
  };
}

CheckOutcome CompareChoices(TrainingDevice& device, const std::vector<Choice>& choices,
                            const TimedModel& model, const std::string& folder,
                            const ChoiceCheck& check) {
  CheckOutcome outcome = {CheckOutcome::kPassed, "", {}};
  std::string rates;
  std::vector<TrainedByChoice> right;
  const std::vector<TrainedByChoice> trained =
      TrainByChoices(device, choices, model, folder, check);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (const absl::Status& status = trained[i].status; !status.ok()) {
      const bool left_out = trained[i].left_out;
      if (!left_out) outcome.kind = CheckOutcome::kFailed;
      absl::StrAppend(&outcome.detail, choices[i].name, ": ", left_out ? "left out, " : "",
                      status.message(), "\n");
      continue;
    }
    const double rate = trained[i].tokens_per_second;
    absl::StrAppendFormat(&rates, "%s %s: %.0f", right.empty() ? ":" : ",", choices[i].name, rate);
    outcome.figures["tokens_per_second, " + choices[i].name] = rate;
    right.push_back(trained[i]);
  }
  if (right.empty() && outcome.kind == CheckOutcome::kPassed) outcome.kind = CheckOutcome::kLeftOut;
  absl::StrAppend(&outcome.detail, model.name, ", tokens/s", rates, OperationLines(right));
  return outcome;
}

CheckOutcome MeasureWays(TrainingDevice& device, const std::vector<cuda::Way>& ways,
                         const TimedModel& model, const std::string& folder,
                         const ChoiceCheck& check, const Deadline& deadline,
                         double reserved_seconds) {
  const std::string name = cuda::DeviceName(device.type, device.products);
  const absl::StatusOr<std::string> path = WritableTable(name);
  if (!path.ok()) return OutcomeOf(path.status());
  WayMeasurement measurement(device, model, folder, check, deadline, reserved_seconds);
  if (const absl::Status status = measurement.TrainAsIs(); !status.ok()) return OutcomeOf(status);
  for (const cuda::Way& way : ways) measurement.Measure(way);
  return measurement.Written(*path, name);
}

CheckOutcome MeasureProducts(TrainingDevice& device, const TimedModel& model,
                             const std::string& folder, const Deadline& deadline) {
  const std::string device_name = cuda::DeviceName(device.type, device.products);
  const absl::StatusOr<std::string> path = WritableTable(device_name);
  if (!path.ok()) return OutcomeOf(path.status());
  TimedModel short_model = model;
  short_model.steps = std::min<int64_t>(model.steps, 3);
  std::map<std::string, MeasuredProduct> products;
  int64_t steps = 0;
  absl::Duration start;
  size_t measured = 0;
  bool complete = false;
  for (double longest = 0; !complete; longest = std::max(longest, SecondsSince(start))) {
    start = SteadyNow();
    if (deadline.left_seconds() <= longest) break;
    const absl::Status status =
        MeasureProposal(device, short_model, folder, measured, &products, &steps);
    if (!status.ok()) return OutcomeOf(status);
    // Where no product has as many proposals, none has more.
    const bool found = std::ranges::any_of(products, [measured](const auto& product) {
      return product.second.seconds[measured] < kNever;
    });
    measured += found ? 1 : 0;
    complete = !found || measured == kComparedProposals;
  }
  if (!complete && measured < 2) return deadline.LeftOut();
  double all = 0, gain = 0;
  std::string lines;
  cuda::ProductProposals fastest;
  for (const auto& [name, product] : products) {
    const double calls = static_cast<double>(product.calls) / static_cast<double>(steps);
    const double first = 1e3 * calls * product.seconds[0];
    const auto best = std::ranges::min_element(product.seconds);
    all += first;
    const bool gains = product.seconds[0] - *best > kShownChange * product.seconds[0];
    const auto chosen = gains ? best - product.seconds.begin() : 0;
    // A proposal that was not measured now may be the one that the table has.
    if (gains || complete) fastest[name] = static_cast<int>(chosen);
    if (!gains) continue;
    gain += first - 1e3 * calls * *best;
    absl::StrAppendFormat(&lines, "\n%.1f of the %s: %.3f ms, by proposal %d: %.3f ms", calls, name,
                          first, chosen, 1e3 * calls * *best);
  }
  CheckOutcome outcome = {
      CheckOutcome::kPassed,
      absl::StrFormat("%s: of %.3f ms of products in a step, a table of the fastest of %d "
                      "proposals saves %.3f ms%s",
                      model.name, all, measured, gain, lines),
      {{"products_ms", all}, {"saved_ms", gain}}};
  AddWritten(cuda::AddProposals(*path, device_name, fastest),
             absl::StrCat("written to ", *path, ", for train --product-table=", *path), &outcome);
  return outcome;
}

}  // namespace tessera::testing
