#ifndef TESSERA_TESTS_DEVICE_SIMULATED_GPUS_H_
#define TESSERA_TESTS_DEVICE_SIMULATED_GPUS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {

struct SimulationSettings {
  // Seed of the order in which queued work, and the blocks and threads of a kernel, run. 0: queued
  // work runs as late as possible.
  uint64_t seed = 0;
  std::function<bool(int64_t)> drops_wait;           // see FakeDeviceOptions
  DeviceNumerics numerics = DeviceNumerics::kExact;  // of models in fp32
};

// Runs `main` on `ranks` threads with a GPU each, whose memory host code cannot touch. `devices` is
// the world for device memory.
absl::Status RunOnSimulatedGpus(
    int ranks, const SimulationSettings& settings,
    const std::function<absl::Status(Communicator& host, Communicator& devices,
                                     SimulatedDevice& gpu)>& main);

}  // namespace tessera

#endif  // TESSERA_TESTS_DEVICE_SIMULATED_GPUS_H_
