#ifndef TESSERA_TESTS_DEVICE_CHECK_TRAINED_BY_CHOICE_H_
#define TESSERA_TESTS_DEVICE_CHECK_TRAINED_BY_CHOICE_H_

// Training by one choice after another, on the same device and from the same start.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "compute/device/training_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cuda/products.h"
#include "tests/device/check/figures.h"

namespace tessera::testing {

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

// Calls run() while the device computes by a choice.
absl::Status WithChoice(TrainingDevice& device, const cuda::ProductChoices& choices,
                        const std::function<absl::Status()>& run);

struct TrainedByChoice {
  absl::Status status;                         // of the checks and of training
  bool left_out = false;                       // `status` says why
  double tokens_per_second = 0;                // the last time
  std::map<std::string, double> milliseconds;  // of a step, the least; by operation
  std::vector<double> results;                 // of each step: loss and norm
};

// Trains, and saves nothing. Internal if results are not those that are there already.
absl::Status TrainAgain(
    TrainingDevice& device, TimedModel model, const std::string& folder, TrainedByChoice* trained,
    const std::function<void()>& after_step = [] {});

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_TRAINED_BY_CHOICE_H_
