// The conformance suite of communicators over NCCL's world, with sums by the kernel.

#include "trainer/device/kernel_reducer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/comm/communicator.h"
#include "trainer/comm/nccl/nccl_world.h"
#include "trainer/comm/nccl/testing/fake_nccl.h"
#include "trainer/comm/testing/conformance.h"
#include "trainer/comm/threads/thread_world.h"
#include "trainer/device/testing/simulated_device.h"
#include "trainer/tensor/fake_device_runtime.h"

namespace tessera {
namespace {

class KernelReducerConformance : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(KernelReducerConformance, Holds) {
  const auto [which, size] = GetParam();
  const uint64_t seed = 7;
  const auto fabric = std::make_shared<FakeFabric>();
  FakeNcclNet net(fabric);
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  for (int rank = 0; rank < size; ++rank) {
    devices.push_back(
        OpenSimulatedDevice(rank, {.seed = seed + static_cast<uint64_t>(rank), .fabric = fabric}));
  }
  ThreadWorld world(size);
  const absl::Status status = world.Run([&, which = which](Communicator& host) -> absl::Status {
    SimulatedDevice& device = *devices[static_cast<size_t>(host.rank())];
    FakeNccl nccl(net, *device.runtime, {.seed = seed});
    absl::StatusOr<std::unique_ptr<NcclWorld>> ranks =
        NcclWorld::Create(host, nccl, *device.compute, *device.reducer);
    if (!ranks.ok()) return ranks.status();
    absl::Status result = ConformanceCases()[static_cast<size_t>(which)].run((*ranks)->world());
    result.Update(device.compute->Synchronize());
    if (!result.ok()) host.Abort(result);
    return result;
  });
  EXPECT_EQ(status, absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(
    All, KernelReducerConformance,
    testing::Combine(testing::Range(0, static_cast<int>(ConformanceCases().size())),
                     testing::Values(1, 3, 4)),
    [](const testing::TestParamInfo<std::tuple<int, int>>& info) {
      return ConformanceCases()[static_cast<size_t>(std::get<0>(info.param))].name + "With" +
             std::to_string(std::get<1>(info.param)) + "Ranks";
    });

TEST(KernelReducerTest, MoreRanksThanTheKernelTakesAreAnError) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0);
  float value = 1;
  const std::vector<const void*> inputs(257, &value);
  device->reducer->Reduce(*device->compute, ReduceOp::kSum, CommType::kF32, inputs, &value, 1);
  EXPECT_EQ(device->compute->Synchronize(),
            absl::UnimplementedError("a reduction: 257 ranks; the kernel takes up to 256"));
}

}  // namespace
}  // namespace tessera
