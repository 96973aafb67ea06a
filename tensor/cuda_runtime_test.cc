#include "tensor/cuda_runtime.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/testing.h"
#include "tensor/device.h"

namespace tessera {
namespace {

TEST(CudaRuntimeTest, NoSuchDevice) {
  EXPECT_TRUE(absl::IsNotFound(MakeCudaRuntime(-1).status()));
  EXPECT_TRUE(absl::IsNotFound(MakeCudaRuntime(1000).status()));
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST(CudaRuntimeTest, TheTypeOfAGpuTellsItsParts) {
  EXPECT_EQ(TypeOf({.name = "NVIDIA H200", .major = 9, .minor = 0, .multiprocessors = 132}),
            "NVIDIA H200, sm_90, 132 multiprocessors");
}

TEST(CudaRuntimeTest, CopiesThroughTheDevice) {
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> runtime = MakeCudaRuntime(0);
  if (absl::IsNotFound(runtime.status())) GTEST_SKIP() << runtime.status() << " (needs: gpu)";
  ASSERT_OK(runtime);
  DeviceContext context(*std::move(runtime));
  absl::StatusOr<Stream> stream = Stream::Create(context), other = Stream::Create(context);
  absl::StatusOr<Event> event = Event::Create(context);
  absl::StatusOr<DeviceBuffer> device = DeviceBuffer::Allocate(*stream, 1000, "test");
  absl::StatusOr<PinnedBuffer> from = PinnedBuffer::Allocate(context, 1000);
  absl::StatusOr<PinnedBuffer> to = PinnedBuffer::Allocate(context, 1000);
  std::memset(from->data(), 42, 1000);
  stream->Copy(from->data(), 1000, device->data());
  event->Record(*stream);
  other->Wait(*event);
  other->Copy(device->data(), 1000, to->data());
  ASSERT_EQ(other->Synchronize(), absl::OkStatus());
  EXPECT_EQ(std::memcmp(from->data(), to->data(), 1000), 0);
}

}  // namespace
}  // namespace tessera
