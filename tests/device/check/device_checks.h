#ifndef TESSERA_TESTS_DEVICE_CHECK_DEVICE_CHECKS_H_
#define TESSERA_TESTS_DEVICE_CHECK_DEVICE_CHECKS_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "compute/device/training_device.h"
#include "compute/kernels/backend.h"
#include "tensor/device.h"
#include "tests/device/check/check.h"
#include "tests/device/check/operations.h"
#include "tests/device/check/training_checks.h"

namespace tessera::testing {

struct DeviceCheckOptions {
  OperationSizes operations;
  TrainingSizes training;
  std::string folder;  // exists; for token files and checkpoints
};

// Returns the checks that must pass on a device before anything is trained there, the cheapest
// first: "gradients", "same_bits", "exact", "resume", "curves", "operations". `device` outlives
// them.
std::vector<Check> DeviceChecks(TrainingDevice& device, const DeviceCheckOptions& options);

// Ends the process, with a message, if what a stream holds at some moment of the watch's lifetime
// takes longer than `most_seconds`: a kernel that never ends would otherwise let everything wait
// for it. `stream` outlives the watch.
class HangWatch {
 public:
  HangWatch(Stream& stream, double most_seconds);

 private:
  std::jthread thread_;
};

// Compares operations with those of a CPU of `threads` threads. Returns a line for each group, or
// an error with these lines if one is wrong.
absl::StatusOr<std::string> CheckOperations(TrainingDevice& device, const OperationSizes& sizes,
                                            int threads);

// Makes a backend of the device for operands in host memory. Each operation copies its operands to
// the device, computes there, copies everything back, and waits, so that a suite for the CPU runs
// on a device unchanged. Views keep their strides, and operands that share memory share it on the
// device. `device` must outlive the backend.
std::unique_ptr<Backend> MakeHostOperandBackend(TrainingDevice& device);

// Makes such a backend from any backend of the device.
std::unique_ptr<Backend> MakeHostOperandBackend(Device device, Backend& backend);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_DEVICE_CHECKS_H_
