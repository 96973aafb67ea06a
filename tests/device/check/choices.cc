#include "tests/device/check/choices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"
#include "models/testing/profiling_backend.h"
#include "tests/device/check/operations.h"
#include "tests/device/check/training_checks.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {
namespace {

constexpr double kShownChange = 0.02;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kComparedProposals = 8;

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
  absl::Status status;                         // of the checks and of training
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
    double& least = product.seconds[proposal];
    least = std::min(least, seconds);
  };
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, device.make_backend(choices));
  const WithBackend chosen(device, std::move(backend));
  TrainedByChoice trained;
  return TrainAgain(
      device, model, folder, [&] { *steps += proposal == 0 ? 1 : 0; }, &trained);
}

enum Round { kChecked, kProfiled, kTimed };

// Whether an earlier choice computes attention in the same way.
bool RepeatsAttention(const std::vector<Choice>& choices, size_t index) {
  const auto way = [](const Choice& choice) {
    const cuda::ProductChoices& products = choice.products;
    return std::tuple(products.attention_at_once, products.attention_by_warpgroups,
                      products.attention_gradients_by_warpgroups);
  };
  return std::any_of(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(index),
                     [&](const Choice& earlier) { return way(earlier) == way(choices[index]); });
}

absl::Status RunRound(Round round, TrainingDevice& device, const TimedModel& model,
                      const DeviceCheckOptions& options, bool checks_attention,
                      TrainedByChoice* trained) {
  const TrainingChecks checks = {device, options.training, options.folder};
  if (round == kChecked) {
    TESSERA_RETURN_IF_ERROR(checks.Gradients().status());
    TESSERA_RETURN_IF_ERROR(checks.SameBits().status());
    if (checks_attention) {
      OperationSizes attention = options.operations;
      if (attention.only.empty()) attention.only = "Attention";
      TESSERA_RETURN_IF_ERROR(
          CheckOperations(device, attention, options.training.threads).status());
    }
  }
  return round == kProfiled ? ProfileAgain(device, model, options.folder, trained)
                            : TrainAgain(
                                  device, model, options.folder, [] {}, trained);
}

// A choice that has failed is left out from then on.
std::vector<TrainedByChoice> TrainByChoices(TrainingDevice& device,
                                            const std::vector<Choice>& choices,
                                            const TimedModel& model,
                                            const DeviceCheckOptions& options) {
  std::vector<TrainedByChoice> trained(choices.size());
  for (const Round round : {kChecked, kProfiled, kTimed}) {
    for (size_t i = 0; i < choices.size(); ++i) {
      if (!trained[i].status.ok()) continue;
      absl::StatusOr<std::unique_ptr<Backend>> backend = device.make_backend(choices[i].products);
      trained[i].status = backend.status();
      if (!backend.ok()) continue;
      const WithBackend chosen(device, *std::move(backend));
      trained[i].status =
          RunRound(round, device, model, options, !RepeatsAttention(choices, i), &trained[i]);
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
  cuda::ProductChoices both = gelu, attention = device.choices;
  both.sums = sums.sums;
  attention.attention_at_once = !attention.attention_at_once;
  const std::string sums_name = sums.sums ? "products sum" : "products do not sum";
  const std::string gelu_name =
      gelu.gelu_gradient ? "GELU's gradient in the product" : "GELU's gradient in a pass that sums";
  std::vector<Choice> choices = {
      {"as is", device.choices},
      {sums_name, sums},
      {gelu_name, gelu},
      {absl::StrCat(sums_name, ", ", gelu_name), both},
      {attention.attention_at_once ? "attention's gradients at once"
                                   : "attention's gradients in two kernels",
       attention}};
  if (device.multiplies_by_warpgroups) {
    cuda::ProductChoices forward = device.choices, backward = device.choices;
    const auto name = [](const char* what, bool* by_warpgroups) {
      *by_warpgroups = !*by_warpgroups;
      return absl::StrCat(what, *by_warpgroups ? " by warpgroups" : " by warps");
    };
    const std::string forward_name = name("attention", &forward.attention_by_warpgroups);
    const std::string backward_name =
        name("attention's gradients", &backward.attention_gradients_by_warpgroups);
    choices.push_back({forward_name, forward});
    choices.push_back({backward_name, backward});
  }
  return choices;
}

CheckOutcome CompareChoices(TrainingDevice& device, const std::vector<Choice>& choices,
                            const TimedModel& model, const DeviceCheckOptions& options) {
  TimedModel short_model = model;
  short_model.saves = false;
  CheckOutcome outcome = {CheckOutcome::kPassed, "", {}};
  std::string rates;
  std::vector<TrainedByChoice> right;
  const std::vector<TrainedByChoice> trained =
      TrainByChoices(device, choices, short_model, options);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!trained[i].status.ok()) {
      outcome.kind = CheckOutcome::kFailed;
      absl::StrAppend(&outcome.detail, choices[i].name, ": ", trained[i].status.message(), "\n");
      continue;
    }
    const double rate = trained[i].tokens_per_second;
    absl::StrAppendFormat(&rates, "%s %s: %.0f", right.empty() ? ":" : ",", choices[i].name, rate);
    outcome.figures["tokens_per_second, " + choices[i].name] = rate;
    right.push_back(trained[i]);
  }
  absl::StrAppend(&outcome.detail, model.name, ", tokens/s", rates, OperationLines(right));
  return outcome;
}

CheckOutcome CompareProposals(TrainingDevice& device, const TimedModel& model,
                              const std::string& folder, cuda::ProductProposals* fastest) {
  TimedModel short_model = model;
  short_model.saves = false;
  short_model.steps = std::min<int64_t>(model.steps, 3);
  std::map<std::string, MeasuredProduct> products;
  int64_t steps = 0;
  for (size_t i = 0; i < kComparedProposals; ++i) {
    const absl::Status status = MeasureProposal(device, short_model, folder, i, &products, &steps);
    if (!status.ok()) return OutcomeOf(status);
  }
  double all = 0, gain = 0;
  std::string lines;
  for (const auto& [name, product] : products) {
    const double calls = static_cast<double>(product.calls) / static_cast<double>(steps);
    const double first = 1e3 * calls * product.seconds[0];
    const auto best = std::ranges::min_element(product.seconds);
    all += first;
    const bool gains = product.seconds[0] - *best > kShownChange * product.seconds[0];
    const auto chosen = gains ? best - product.seconds.begin() : 0;
    if (fastest != nullptr) (*fastest)[name] = static_cast<int>(chosen);
    if (!gains) continue;
    gain += first - 1e3 * calls * *best;
    absl::StrAppendFormat(&lines, "\n%.1f of the %s: %.3f ms, by proposal %d: %.3f ms", calls, name,
                          first, chosen, 1e3 * calls * *best);
  }
  return {CheckOutcome::kPassed,
          absl::StrFormat("%s: of %.3f ms of products in a step, a table of the fastest of %d "
                          "proposals would save %.3f ms%s",
                          model.name, all, kComparedProposals, gain, lines),
          {{"products_ms", all}, {"saved_ms", gain}}};
}

CheckOutcome MeasureProducts(TrainingDevice& device, const TimedModel& model,
                             const std::string& folder) {
  const absl::StatusOr<std::string> path = cuda::ProductTablePath();
  if (!path.ok()) return OutcomeOf(path.status());
  const std::string name = cuda::DeviceName(device.type, device.products);
  // Fails here rather than after all measurements.
  if (const absl::Status status = cuda::AddProposals(*path, name, {}); !status.ok()) {
    return OutcomeOf(status);
  }
  cuda::ProductProposals fastest;
  CheckOutcome outcome = CompareProposals(device, model, folder, &fastest);
  if (outcome.kind != CheckOutcome::kPassed) return outcome;
  const absl::Status written = cuda::AddProposals(*path, name, fastest);
  if (!written.ok()) {
    outcome.kind = CheckOutcome::kFailed;
    absl::StrAppend(&outcome.detail, "\nnot written: ", written.message());
    return outcome;
  }
  absl::StrAppend(&outcome.detail, "\nwritten to ", *path, ", for train --product-table=", *path);
  return outcome;
}

}  // namespace tessera::testing
