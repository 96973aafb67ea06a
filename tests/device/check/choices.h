#ifndef TESSERA_TESTS_DEVICE_CHECK_CHOICES_H_
#define TESSERA_TESTS_DEVICE_CHECK_CHOICES_H_

// Comparison of the ways in which a device may compute a model (cuda::ProductChoices).

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/device/training_device.h"
#include "compute/kernels/cuda/product_table.h"
#include "compute/kernels/cuda/products.h"
#include "tests/device/check/check.h"
#include "tests/device/check/device_checks.h"
#include "tests/device/check/figures.h"

namespace tessera::testing {

struct Choice {
  std::string name;  // ways in the form of ParseChoice()
  cuda::ProductChoices products;
};

// Returns the device's choices with other ways: "sums=true,gelu_gradient=false", or "as is".
// InvalidArgument, with the names of all ways, for another text; the errors of CheckChoices().
absl::StatusOr<Choice> ParseChoice(const TrainingDevice& device, const std::string& name);

// Returns the device's own choice, and those to which it is compared: each of cuda::kWays that the
// device has, by itself, and both that change how sums for biases are computed.
std::vector<Choice> ChoicesOf(const TrainingDevice& device);

// Returns the checks that a choice must pass, while the device computes by it: "gradients",
// "same_bits" and, if it computes attention in another way than the device's own or is the device's
// own, attention's "operations". `device` outlives them.
std::vector<Check> ChecksOfChoice(TrainingDevice& device, const Choice& choice,
                                  const DeviceCheckOptions& options);

// Checks a choice. DeadlineExceeded leaves it out.
using ChoiceCheck = std::function<absl::Status(const Choice&)>;
// Returns what runs ChecksOfChoice() in this process.
ChoiceCheck CheckHere(TrainingDevice& device, const DeviceCheckOptions& options);
// Returns what runs `command` and "--ways=NAME", which must end with 0, in `seconds` at most. A
// kernel that no GPU has run may leave its process without a GPU, or never end. DeadlineExceeded if
// `deadline` ends it sooner.
ChoiceCheck CheckInProcess(std::vector<std::string> command, const std::string& folder,
                           double seconds, const Deadline& deadline = {});

// Checks each choice, then trains `model` by each in turn, twice: losses and norms of a choice must
// be the same. A choice that is wrong or left out is named, and the others are compared. The
// figures are tokens/s by choice; the lines below have the operations that another choice than the
// first changes by more than 2 percent, in ms of a step. An operation's time includes that of
// waiting for it.
CheckOutcome CompareChoices(TrainingDevice& device, const std::vector<Choice>& choices,
                            const TimedModel& model, const std::string& folder,
                            const ChoiceCheck& check);

// Trains `model` as it is, then in each of the ways in turn, beside those that were chosen before.
// A way is chosen if it passes `check`, and trains twice with the same finite losses and norms, at
// least 0.5 percent faster each time than without it in between. The device computes in the chosen
// ways from then on, and the user's table gets them, in place of all that it has; where none is
// chosen, only those that were compared leave it. Ways for which no time is left, by the longest so
// far and `reserved_seconds` for what comes after, are left out by name, as is one that would
// change nothing beside those that were chosen. One that is wrong is a failure; the others are
// measured nevertheless, unless the device has failed: they are left out then. Losses that change
// without it are a failure, too: the table stays as it was. Measures nothing where no table can be
// written.
CheckOutcome MeasureWays(TrainingDevice& device, const std::vector<cuda::Way>& ways,
                         const TimedModel& model, const std::string& folder,
                         const ChoiceCheck& check, const Deadline& deadline = {},
                         double reserved_seconds = 0);
// Returns those of cuda::kWays that a device has.
std::vector<cuda::Way> WaysOf(const TrainingDevice& device);

// Trains `model` by each of the first 8 algorithms that the library proposes for its products
// (ProductChoices::proposal), and measures each product (ProductTimer); by fewer if the time that
// is left is less than the longest took. Writes the fastest to the user's table of products
// (product_table.h), for `train --product-table`: the first where another gains less than 2
// percent. The figures are the time of a step's products and what the table saves of it. A line for
// each product that gains has both times. Measures nothing where no table can be written.
CheckOutcome MeasureProducts(TrainingDevice& device, const TimedModel& model,
                             const std::string& folder, const Deadline& deadline = {});

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_CHOICES_H_
