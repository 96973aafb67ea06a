#include "tests/device/check/trained_by_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {

absl::Status WithChoice(TrainingDevice& device, const cuda::ProductChoices& choices,
                        const std::function<absl::Status()>& run) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, device.make_backend(choices));
  const WithBackend chosen(device, std::move(backend));
  return run();
}

absl::Status TrainAgain(TrainingDevice& device, TimedModel model, const std::string& folder,
                        TrainedByChoice* trained, const std::function<void()>& after_step) {
  model.saves = false;
  std::vector<double> results;
  TESSERA_ASSIGN_OR_RETURN(const TrainingFigures figures,
                           MeasureTraining(model, &device, folder, [&](const StepResult& result) {
                             results.insert(results.end(), {result.loss, result.grad_norm});
                             after_step();
                           }));
  trained->tokens_per_second = figures.tokens_per_second;
  if (trained->results.empty()) trained->results = results;
  if (trained->results == results &&
      std::ranges::all_of(results, [](double x) { return std::isfinite(x); })) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the losses or norms of ", model.name,
                                          " are not those of the run before, or not finite"));
}

}  // namespace tessera::testing
