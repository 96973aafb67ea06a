#ifndef TESSERA_COMPUTE_DEVICE_TESTING_SIMULATED_DEVICES_H_
#define TESSERA_COMPUTE_DEVICE_TESTING_SIMULATED_DEVICES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/testing/fake_nccl.h"
#include "compute/device/compute_devices.h"
#include "compute/device/training_device.h"
#include "compute/kernels/cuda/testing/simulated_arithmetic.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {

struct SimulatedDevicesOptions {
  int count = 1;
  // Seed of the schedule: the order in which queued work and messages (FakeDeviceOptions) and the
  // blocks and threads of kernels run.
  uint64_t seed = 0;
  std::function<bool(int64_t)> drops_wait;  // see FakeDeviceOptions
  // Memory and type of a device, by its index. Null: 1 GiB each, all of one type.
  std::function<int64_t(int)> memory_bytes;
  std::function<std::string(int)> type;
  // Given a device's index and a number of bytes; see FakeDeviceOptions.
  std::function<bool(int, int64_t)> lacks_pinned;
  int64_t shared_bytes_of_block = FakeDeviceOptions().shared_bytes_of_block;
  bool multiplies_by_warpgroups = true;
  simt::Arithmetic arithmetic = simt::Arithmetic::kIeee;
};

// The GPUs of a machine whose ranks are threads: simulated devices, whose memory host code cannot
// touch, and a fake NCCL.
class SimulatedDevices final : public ComputeDevices {
 public:
  explicit SimulatedDevices(const SimulatedDevicesOptions& options);

  absl::StatusOr<std::vector<std::string>> Find() override;
  absl::StatusOr<std::unique_ptr<TrainingDevice>> Open(int index, DeviceNumerics numerics) override;
  NumericsFingerprint Numerics(TrainingDevice& device) override;
  // Computes them once in a process, in seconds, unless waits are dropped.
  // //tests/device:fixed_results_test has other schedules.
  FixedResults ExactResults(TrainingDevice& device) override;
  absl::StatusOr<std::unique_ptr<NcclApi>> OpenNccl(TrainingDevice& device) override;

 private:
  FakeDeviceOptions DeviceOptions(int index) const;

  const SimulatedDevicesOptions options_;
  const std::shared_ptr<FakeFabric> fabric_;
  FakeNcclNet net_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_DEVICE_TESTING_SIMULATED_DEVICES_H_
