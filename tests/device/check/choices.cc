#include "tests/device/check/choices.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/kernels/backend.h"
#include "models/testing/profiling_backend.h"
#include "tests/device/check/training_checks.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {
namespace {

constexpr double kShownChange = 0.02;
constexpr int kComparedProposals = 8;

// Lets the device compute with another backend during its lifetime.
class WithBackend {
 public:
  WithBackend(TrainingDevice& device, std::unique_ptr<Backend> backend)
      : device_(device), own_(std::exchange(device.backend, std::move(backend))) {}
  ~WithBackend() { device_.backend = std::move(own_); }
  WithBackend(const WithBackend&) = delete;
  WithBackend& operator=(const WithBackend&) = delete;

 private:
  TrainingDevice& device_;
  std::unique_ptr<Backend> own_;
};

struct TrainedByChoice {
  double tokens_per_second = 0;                // the best
  std::map<std::string, double> milliseconds;  // of a step, the least; by operation
  std::vector<double> results;                 // of each step: loss and norm
};

// Trains, and keeps the better figures. Results must be those that are there already.
absl::Status TrainAgain(TrainingDevice& device, const TimedModel& model, const std::string& folder,
                        const std::function<void()>& after_step, TrainedByChoice* trained) {
  std::vector<double> results;
  TESSERA_ASSIGN_OR_RETURN(const TrainingFigures figures,
                           MeasureTraining(model, &device, folder, [&](const StepResult& result) {
                             results.insert(results.end(), {result.loss, result.grad_norm});
                             after_step();
                           }));
  trained->tokens_per_second = std::max(trained->tokens_per_second, figures.tokens_per_second);
  if (trained->results.empty()) trained->results = results;
  if (trained->results == results &&
      std::ranges::all_of(results, [](double x) { return std::isfinite(x); })) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the losses or norms of ", model.name,
                                          " are not those of the run before, or not finite"));
}

// Also measures the operations, each of which is waited for.
absl::Status ProfileAgain(TrainingDevice& device, const TimedModel& model,
                          const std::string& folder, TrainedByChoice* trained) {
  auto owned = std::make_unique<ProfilingBackend>(*device.backend);
  ProfilingBackend& profiling = *owned;
  const WithBackend profiled(device, std::move(owned));
  return TrainAgain(
      device, model, folder,
      [&] {
        for (const auto& [name, total] : profiling.Take()) {
          const auto [least, first] = trained->milliseconds.emplace(name, 1e3 * total.seconds);
          if (!first) least->second = std::min(least->second, 1e3 * total.seconds);
        }
      },
      trained);
}

enum Round { kChecked, kProfiled, kTimed };

absl::Status RunRound(Round round, TrainingDevice& device, const TimedModel& model,
                      const DeviceCheckOptions& options, TrainedByChoice* trained) {
  const TrainingChecks checks = {device, options.training, options.folder};
  if (round == kChecked) {
    TESSERA_RETURN_IF_ERROR(checks.Gradients().status());
    TESSERA_RETURN_IF_ERROR(checks.SameBits().status());
  }
  return round == kProfiled ? ProfileAgain(device, model, options.folder, trained)
                            : TrainAgain(
                                  device, model, options.folder, [] {}, trained);
}

absl::StatusOr<std::vector<TrainedByChoice>> TrainByChoices(TrainingDevice& device,
                                                            const std::vector<Choice>& choices,
                                                            const TimedModel& model,
                                                            const DeviceCheckOptions& options) {
  std::vector<TrainedByChoice> trained(choices.size());
  for (const Round round : {kChecked, kProfiled, kTimed}) {
    for (size_t i = 0; i < choices.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                               device.make_backend(choices[i].products));
      const WithBackend chosen(device, std::move(backend));
      const absl::Status status = RunRound(round, device, model, options, &trained[i]);
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat(choices[i].name, ": ", status.message()));
      }
    }
  }
  return trained;
}

// A line for each operation that takes another time by another choice.
std::string OperationLines(const std::vector<TrainedByChoice>& trained) {
  std::map<std::string, std::vector<double>> table;
  for (size_t i = 0; i < trained.size(); ++i) {
    for (const auto& [name, milliseconds] : trained[i].milliseconds) {
      std::vector<double>& row = table[name];
      row.resize(trained.size());
      row[i] = milliseconds;
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

std::vector<Choice> ChoicesOf(const TrainingDevice& device) {
  cuda::ProductChoices sums = device.choices, gelu = device.choices;
  sums.sums = !sums.sums;
  gelu.gelu_gradient = !gelu.gelu_gradient;
  cuda::ProductChoices both = gelu;
  both.sums = sums.sums;
  const std::string sums_name = sums.sums ? "products sum" : "products do not sum";
  const std::string gelu_name =
      gelu.gelu_gradient ? "GELU's gradient in the product" : "GELU's gradient in a pass that sums";
  return {{"as is", device.choices},
          {sums_name, sums},
          {gelu_name, gelu},
          {absl::StrCat(sums_name, ", ", gelu_name), both}};
}

CheckOutcome CompareChoices(TrainingDevice& device, const std::vector<Choice>& choices,
                            const TimedModel& model, const DeviceCheckOptions& options) {
  TimedModel short_model = model;
  short_model.saves = false;
  const absl::StatusOr<std::vector<TrainedByChoice>> trained =
      TrainByChoices(device, choices, short_model, options);
  if (!trained.ok()) return OutcomeOf(trained.status());
  CheckOutcome outcome = {CheckOutcome::kPassed, absl::StrCat(model.name, ", tokens/s"), {}};
  for (size_t i = 0; i < choices.size(); ++i) {
    const double rate = (*trained)[i].tokens_per_second;
    absl::StrAppendFormat(&outcome.detail, "%s %s: %.0f", i == 0 ? ":" : ",", choices[i].name,
                          rate);
    outcome.figures["tokens_per_second, " + choices[i].name] = rate;
  }
  outcome.detail += OperationLines(*trained);
  return outcome;
}

CheckOutcome CompareProposals(TrainingDevice& device, const TimedModel& model,
                              const std::string& folder) {
  TimedModel short_model = model;
  short_model.saves = false;
  short_model.steps = std::min<int64_t>(model.steps, 3);
  std::vector<TrainedByChoice> trained(kComparedProposals);
  for (int i = 0; i < kComparedProposals; ++i) {
    cuda::ProductChoices products = device.choices;
    products.proposal = i;
    absl::StatusOr<std::unique_ptr<Backend>> backend = device.make_backend(products);
    if (!backend.ok()) return OutcomeOf(backend.status());
    const WithBackend chosen(device, *std::move(backend));
    const absl::Status status =
        ProfileAgain(device, short_model, folder, &trained[static_cast<size_t>(i)]);
    if (!status.ok()) return OutcomeOf(status);
  }
  double all = 0, gain = 0;
  std::string lines;
  for (const auto& [name, first] : trained[0].milliseconds) {
    if (!name.starts_with("MatMul")) continue;
    const auto time = [&name = name](const TrainedByChoice& one) {
      return one.milliseconds.at(name);
    };
    const auto best = std::ranges::min_element(trained, {}, time);
    all += first;
    if (first - time(*best) < kShownChange * first) continue;
    gain += first - time(*best);
    absl::StrAppendFormat(&lines, "\n%-44s %9.3f ms, by proposal %d: %9.3f ms", name, first,
                          best - trained.begin(), time(*best));
  }
  return {CheckOutcome::kPassed,
          absl::StrFormat("%s: of %.3f ms of products in a step, a table of the fastest of %d "
                          "proposals would save %.3f ms%s",
                          model.name, all, kComparedProposals, gain, lines),
          {{"products_ms", all}, {"saved_ms", gain}}};
}

}  // namespace tessera::testing
