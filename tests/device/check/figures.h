#ifndef TESSERA_TESTS_DEVICE_CHECK_FIGURES_H_
#define TESSERA_TESTS_DEVICE_CHECK_FIGURES_H_

// Measurements of how fast a device trains. One rank.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/device/training_device.h"
#include "tests/device/check/check.h"
#include "trainer/step/trainer.h"

namespace tessera::testing {

// A GPT-2 that is timed, by Tessera and by PyTorch.
struct TimedModel {
  std::string name;
  std::string check;  // the name of the check that times it
  int64_t layers = 0, hidden = 0, heads = 0, vocabulary = 0;
  int64_t seq_length = 0;
  int64_t micro_batch = 0;            // sequences
  int64_t accumulation = 0;           // micro-batches of a step
  int64_t steps = 0;                  // timed, after two that are not
  double llmc_tokens_per_second = 0;  // published, a GPU; 0: none
  bool saves = false;                 // also times an asynchronous save
  bool bf16 = true;
  bool recompute_activations = false;
  std::string text = "";  // ModelConfig in text format; empty: a GPT-2 of the sizes above
  std::function<double()> now = nullptr;  // seconds; null: those of the steady clock
};

// Returns GPT-2 124M, with a save, and 1558M, for a GPU of 80 GB. llm.c's published figures are for
// eight H100s.
std::vector<TimedModel> FullModels();
// Returns a model for tests, which takes a tenth of a second.
TimedModel SmallModel();
// Returns the model that a config of `train` describes, with its micro-batches, dtype and whether
// activations are recomputed, to measure its products. InvalidArgument for a wrong config, for more
// than one tensor rank, and for products with one algorithm.
absl::StatusOr<TimedModel> ModelOfConfig(const std::string& path);

struct TrainingFigures {
  double seconds_per_step = 0;  // median
  double tokens_per_second = 0;
  double flops_per_second = 0;  // of the model
  // Seconds of one save: of its call, and of its call plus the slowdown of steps until the save
  // ended.
  double blocked_seconds = 0;
  double lost_seconds = 0;
  int64_t saved_bytes = 0;
};

// Measures training on the device, or on the CPU if `device` is null. `folder` must exist.
// `after_step` gets the result of each step, those that are not timed among them.
absl::StatusOr<TrainingFigures> MeasureTraining(
    const TimedModel& model, TrainingDevice* device, const std::filesystem::path& folder,
    const std::function<void(const StepResult&)>& after_step = [](const StepResult&) {});

// Returns the tokens/s of the model in PyTorch: see pytorch_rate.py. Unavailable, with a sentence,
// if there is no python3 with PyTorch, or PyTorch cannot use `device` ("cuda", "cpu");
// DeadlineExceeded if it has not ended in time.
absl::StatusOr<double> MeasurePytorch(const TimedModel& model, const std::string& python,
                                      const std::filesystem::path& script,
                                      const std::string& device,
                                      const std::filesystem::path& folder,
                                      const Deadline& deadline = {});

// Returns the figures, and lines of them for people. `product_rate` as MeasureProductRate() has it.
CheckOutcome OutcomeOf(const TimedModel& model, const TrainingFigures& figures,
                       double product_rate);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_FIGURES_H_
