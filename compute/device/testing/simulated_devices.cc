#include "compute/device/testing/simulated_devices.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/cuda/device_backend.h"
#include "compute/kernels/cuda/testing/simt_host.h"

namespace tessera {

SimulatedDevices::SimulatedDevices(const SimulatedDevicesOptions& options)
    : options_(options), fabric_(std::make_shared<FakeFabric>()), net_(fabric_) {}

FakeDeviceOptions SimulatedDevices::DeviceOptions(int index) const {
  const uint64_t seed = options_.seed == 0 ? 0 : options_.seed * 100 + static_cast<uint64_t>(index);
  FakeDeviceOptions options{.seed = seed,
                            .shared_bytes_of_block = options_.shared_bytes_of_block,
                            .fabric = fabric_,
                            .drops_wait = options_.drops_wait};
  if (options_.memory_bytes) options.memory_bytes = options_.memory_bytes(index);
  if (options_.lacks_pinned) {
    options.lacks_pinned = [this, index](int64_t bytes) {
      return options_.lacks_pinned(index, bytes);
    };
  }
  return options;
}

absl::StatusOr<std::vector<std::string>> SimulatedDevices::Find() {
  std::vector<std::string> names;
  for (int index = 0; index < options_.count; ++index) {
    names.push_back("simulated-" + std::to_string(index));
  }
  return names;
}

absl::StatusOr<std::unique_ptr<TrainingDevice>> SimulatedDevices::Open(int index,
                                                                       DeviceNumerics numerics) {
  const FakeDeviceOptions options = DeviceOptions(index);
  simt::SetSimulatorOptions({.seed = options.seed + 1});
  simt::SetSimulatedArithmetic(options_.arithmetic);
  std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(index, options, numerics);
  device->type = options_.type ? options_.type(index) : "simulated GPU";
  device->products = "fake cuBLASLt";
  device->multiplies_by_warpgroups = options_.multiplies_by_warpgroups;
  if (numerics == DeviceNumerics::kExact) {
    TESSERA_RETURN_IF_ERROR(cuda::CheckArithmetic(
        absl::StrCat("GPU ", index, " (", device->type, ")"), *device->compute, *device->copies));
  }
  return device;
}

NumericsFingerprint SimulatedDevices::Numerics(TrainingDevice& device) {
  return {.instruction_set = device.type, .library = device.products};
}

FixedResults SimulatedDevices::ExactResults(TrainingDevice& device) {
  if (options_.drops_wait != nullptr) return ComputeDevices::ExactResults(device);
  static const FixedResults results = ComputeDevices::ExactResults(device);
  return results;
}

absl::StatusOr<std::unique_ptr<NcclApi>> SimulatedDevices::OpenNccl(TrainingDevice& device) {
  return std::make_unique<FakeNccl>(
      net_, *static_cast<SimulatedDevice&>(device).runtime,
      FakeNcclOptions{.seed = DeviceOptions(device.device.index).seed});
}

}  // namespace tessera
