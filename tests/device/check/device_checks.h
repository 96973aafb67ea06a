#ifndef TESSERA_TESTS_DEVICE_CHECK_DEVICE_CHECKS_H_
#define TESSERA_TESTS_DEVICE_CHECK_DEVICE_CHECKS_H_

#include <string>
#include <vector>

#include "compute/device/training_device.h"
#include "tests/device/check/check.h"
#include "tests/device/check/operations.h"
#include "tests/device/check/training_checks.h"

namespace tessera::testing {

struct DeviceCheckOptions {
  OperationSizes operations;
  TrainingSizes training;
  std::string folder;  // exists; for token files and checkpoints
};

// What must hold on a device before anything is trained there: "operations", "gradients", "curves",
// "resume" and "same_bits". `device` outlives the checks.
std::vector<Check> DeviceChecks(TrainingDevice& device, const DeviceCheckOptions& options);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_DEVICE_CHECKS_H_
