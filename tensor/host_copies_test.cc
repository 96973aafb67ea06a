#include "tensor/host_copies.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tensor/testing/fake_device_runtime.h"

namespace tessera {
namespace {

TEST(HostCopiesTest, BytesArriveThoughTheHostChangesItsOwnAtOnce) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    DeviceContext context(std::make_unique<FakeDeviceRuntime>(FakeDeviceOptions{.seed = seed}));
    Stream stream = *Stream::Create(context);
    const std::unique_ptr<HostCopies> copies =
        *HostCopies::Create(stream, {.slot_bytes = 64, .slots = 3});
    for (int64_t bytes : {0, 1, 64, 65, 192, 1000}) {
      const DeviceBuffer device = *DeviceBuffer::Allocate(stream, bytes, "test");
      std::vector<char> from(bytes);
      std::iota(from.begin(), from.end(), static_cast<char>(seed));
      const std::vector<char> expected = from;
      EXPECT_EQ(copies->ToDevice(from.data(), bytes, device.data()), absl::OkStatus());
      from.assign(from.size(), 0);
      std::vector<char> to(bytes);
      EXPECT_EQ(copies->ToHost(device.data(), bytes, to.data()), absl::OkStatus());
      EXPECT_EQ(to, expected) << bytes;
    }
    EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  }
}

// The host queues small copies ahead of the device.
TEST(HostCopiesTest, WaitsOnlyForASlot) {
  auto owned = std::make_unique<FakeDeviceRuntime>(FakeDeviceOptions{.seed = 0});
  FakeDeviceRuntime* const runtime = owned.get();
  DeviceContext context(std::move(owned));
  Stream stream = *Stream::Create(context);
  const std::unique_ptr<HostCopies> copies =
      *HostCopies::Create(stream, {.slot_bytes = 8, .slots = 2});
  const DeviceBuffer device = *DeviceBuffer::Allocate(stream, 8, "test");
  bool ran = false;
  runtime->Enqueue(stream.handle(), [&] { ran = true; });
  const int64_t value = 7;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(copies->ToDevice(&value, 8, device.data()), absl::OkStatus());
    EXPECT_FALSE(ran);
  }
  EXPECT_EQ(copies->ToDevice(&value, 8, device.data()), absl::OkStatus());
  EXPECT_TRUE(ran);
}

// A copy to the host takes the slot that was used longest ago, whose upload need not be waited for.
TEST(HostCopiesTest, ACopyToTheHostWaitsForItselfAlone) {
  auto owned = std::make_unique<FakeDeviceRuntime>(FakeDeviceOptions{.seed = 0});
  FakeDeviceRuntime* const runtime = owned.get();
  DeviceContext context(std::move(owned));
  Stream stream = *Stream::Create(context);
  const std::unique_ptr<HostCopies> copies =
      *HostCopies::Create(stream, {.slot_bytes = 8, .slots = 4});
  const DeviceBuffer device = *DeviceBuffer::Allocate(stream, 16, "test");
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  for (int step = 0; step < 9; ++step) {
    const int64_t uploaded[2] = {step, -step};
    int64_t found[2] = {};
    const int64_t waits = runtime->calls().waits;
    EXPECT_EQ(copies->ToDevice(uploaded, 16, device.data()), absl::OkStatus());
    EXPECT_EQ(copies->ToHost(device.data(), 8, found), absl::OkStatus());
    EXPECT_EQ(runtime->calls().waits, waits + 1) << step;
    EXPECT_EQ(copies->ToHost(device.data(), 16, found), absl::OkStatus());
    EXPECT_EQ(found[0], step);
    EXPECT_EQ(found[1], -step);
  }
}

}  // namespace
}  // namespace tessera
