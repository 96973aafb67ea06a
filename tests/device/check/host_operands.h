#ifndef TESSERA_TESTS_DEVICE_CHECK_HOST_OPERANDS_H_
#define TESSERA_TESTS_DEVICE_CHECK_HOST_OPERANDS_H_

#include <memory>

#include "compute/device/training_device.h"
#include "compute/kernels/backend.h"

namespace tessera::testing {

// The device's backend for operands in host memory: each operation copies its operands to the
// device, computes there, and copies everything back, so that what a suite writes for the CPU runs
// on a device unchanged. Views keep their strides, and operands that share memory share it on the
// device. Every operation waits. `device` outlives the backend.
std::unique_ptr<Backend> MakeHostOperandBackend(TrainingDevice& device);

// The same, on any backend of that device.
std::unique_ptr<Backend> MakeHostOperandBackend(Device device, Backend& backend);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_DEVICE_CHECK_HOST_OPERANDS_H_
