// The conformance suite of communicators over NCCL's world, with sums by the kernel.

#include "compute/device/kernel_reducer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "comm/nccl/nccl_world.h"
#include "comm/nccl/testing/fake_nccl.h"
#include "comm/testing/conformance.h"
#include "comm/threads/thread_world.h"
#include "compute/device/testing/simulated_device.h"
#include "tensor/bfloat16.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {
namespace {

class KernelReducerConformance : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(KernelReducerConformance, Holds) {
  const auto [which, size] = GetParam();
  const uint64_t seed = 7;
  const auto fabric = FakeFabric::OverHostMemory();
  FakeNcclNet net(fabric);
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  for (int rank = 0; rank < size; ++rank) {
    devices.push_back(
        OpenSimulatedDevice(rank, {.seed = seed + static_cast<uint64_t>(rank), .fabric = fabric}));
  }
  ThreadWorld world(size);
  const absl::Status status = world.Run([&, which = which](Communicator& host) -> absl::Status {
    SimulatedDevice& device = *devices[static_cast<size_t>(host.rank())];
    if (absl::Status selected = device.runtime->Select(); !selected.ok()) return selected;
    FakeNccl nccl(net, *device.runtime, {.seed = seed});
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<NcclWorld> ranks,
                             NcclWorld::Create(host, nccl, *device.compute, *device.reducer));
    absl::Status result = ConformanceCases()[static_cast<size_t>(which)].run(ranks->world());
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

class ManyRanks : public testing::TestWithParam<int> {};

// One launch takes the pieces of 256 ranks. The sums of more have the bits of the host's, also in
// place, and the memory that they need is given back.
TEST_P(ManyRanks, HaveTheBitsOfTheHost) {
  const int ranks = GetParam();
  constexpr int64_t kElements = 5;
  const std::unique_ptr<SimulatedDevice> device =
      OpenSimulatedDevice(0, {.seed = 3, .fabric = FakeFabric::OverHostMemory()});
  const auto expect_same = [&]<typename T>(T, CommType type) {
    std::vector<std::vector<T>> pieces(static_cast<size_t>(ranks));
    std::vector<const void*> inputs;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<T>& piece = pieces[static_cast<size_t>(rank)];
      for (int64_t i = 0; i < kElements; ++i) {
        piece.push_back(static_cast<T>(1.0f + 0.37f * static_cast<float>((rank * 7 + i) % 101)));
      }
      inputs.push_back(piece.data());
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      std::vector<T> expected(kElements), actual(kElements);
      ReduceInTreeOrder(op, type, inputs, expected.data(), kElements);
      device->reducer->Reduce(*device->compute, op, type, inputs, actual.data(), kElements);
      EXPECT_EQ(device->compute->Synchronize(), absl::OkStatus());
      EXPECT_EQ(std::memcmp(actual.data(), expected.data(), kElements * sizeof(T)), 0);
    }
    std::vector<T> expected(kElements);
    ReduceInTreeOrder(ReduceOp::kSum, type, inputs, expected.data(), kElements);
    std::vector<T>& last = pieces.back();
    device->reducer->Reduce(*device->compute, ReduceOp::kSum, type, inputs, last.data(), kElements);
    EXPECT_EQ(device->compute->Synchronize(), absl::OkStatus());
    EXPECT_EQ(std::memcmp(last.data(), expected.data(), kElements * sizeof(T)), 0);
  };
  const std::string before = device->context->DescribeMemory();
  expect_same(float{}, CommType::kF32);
  expect_same(BFloat16{}, CommType::kBF16);
  expect_same(int32_t{}, CommType::kI32);
  EXPECT_EQ(device->context->DescribeMemory(), before);
}

INSTANTIATE_TEST_SUITE_P(All, ManyRanks, testing::Values(256, 257, 600, 1025));

TEST(KernelReducerTest, MoreRanksThanTwoLaunchesTakeAreAnError) {
  const std::unique_ptr<SimulatedDevice> device = OpenSimulatedDevice(0);
  float value = 1;
  const std::vector<const void*> inputs(65537, &value);
  device->reducer->Reduce(*device->compute, ReduceOp::kSum, CommType::kF32, inputs, &value, 1);
  EXPECT_EQ(device->compute->Synchronize(),
            absl::UnimplementedError("a reduction: 65537 ranks; the kernel takes up to 65536"));
}

}  // namespace
}  // namespace tessera
