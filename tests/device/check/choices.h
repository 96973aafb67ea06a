#ifndef TESSERA_TESTS_DEVICE_CHECK_CHOICES_H_
#define TESSERA_TESTS_DEVICE_CHECK_CHOICES_H_

// Comparison of the ways in which a device may compute a model (cuda::ProductChoices), in one
// process.

#include <string>
#include <vector>

#include "compute/device/training_device.h"
#include "compute/kernels/cuda/products.h"
#include "tests/device/check/check.h"
#include "tests/device/check/device_checks.h"
#include "tests/device/check/figures.h"

namespace tessera::testing {

struct Choice {
  std::string name;
  cuda::ProductChoices products;
};

// Returns the device's own choice, and those to which it is compared.
std::vector<Choice> ChoicesOf(const TrainingDevice& device);

// Checks each choice as DeviceChecks() do ("gradients", "same_bits", and attention's "operations",
// these once for each way of computing attention).
// Then trains `model` by each in turn, three times: losses and norms of a choice must be the same
// each time. A choice that is wrong is named, and the others are compared. The figures are tokens/s
// by choice; the lines below have the operations that another choice than the first changes by more
// than 2 percent, in ms of a step. An operation's time includes that of waiting for it.
CheckOutcome CompareChoices(TrainingDevice& device, const std::vector<Choice>& choices,
                            const TimedModel& model, const DeviceCheckOptions& options);

// Trains `model` by each of the first 8 algorithms that the library proposes for its products
// (ProductChoices::proposal), and measures each product (ProductTimer). The figures are the time of
// a step's products and what a table of the fastest would save of it. A line for each product whose
// fastest gains more than 2 percent over the first has both times. `fastest` gets the proposal of
// each product, 0 where nothing is gained; it may be null.
CheckOutcome CompareProposals(TrainingDevice& device, const TimedModel& model,
                              const std::string& folder, cuda::ProductProposals* fastest = nullptr);

// Does the same, and writes the fastest to the user's table of products (product_table.h), for
// `train --product-table`. Measures nothing where no table can be written.
CheckOutcome MeasureProducts(TrainingDevice& device, const TimedModel& model,
                             const std::string& folder);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_CHOICES_H_
