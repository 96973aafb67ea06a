// The fixed examples of a device's numerics fingerprint, on simulated GPUs.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "compute/device/testing/simulated_device.h"
#include "compute/kernels/backend.h"
#include "compute/kernels/cpu/cpu_backend.h"
#include "compute/kernels/numerics_fingerprint.h"

namespace tessera {
namespace {

FixedResults OnDevice(uint64_t seed) {
  const std::unique_ptr<SimulatedDevice> gpu = OpenSimulatedDevice(0, {.seed = seed});
  const FixedResults results = ComputeFixedResults(*gpu->backend);
  EXPECT_EQ(gpu->backend->Synchronize(), absl::OkStatus());
  return results;
}

TEST(FixedResultsTest, DevicesOfOneTypeAgreeInEveryOrderOfStreams) {
  const FixedResults first = OnDevice(0);
  EXPECT_EQ(OnDevice(7), first);
  EXPECT_NE(first.products_hash, 0);
  EXPECT_NE(first.loops_hash, 0);
}

TEST(FixedResultsTest, ExactDevicesAgreeWithProcessors) {
  const std::unique_ptr<SimulatedDevice> gpu =
      OpenSimulatedDevice(0, {.seed = 3}, DeviceNumerics::kExact);
  const FixedResults results = ComputeFixedResults(*gpu->backend, /*bf16=*/false);
  EXPECT_EQ(gpu->backend->Synchronize(), absl::OkStatus());
  const std::unique_ptr<Backend> cpu = MakeCpuBackend(1, /*exact=*/true);
  EXPECT_EQ(results, ComputeFixedResults(*cpu, /*bf16=*/false));
}

}  // namespace
}  // namespace tessera
