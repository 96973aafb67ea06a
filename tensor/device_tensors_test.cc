#include "tensor/device_tensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/no_memory.h"
#include "layout/dtype.h"
#include "tensor/memory.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {
namespace {

constexpr Device kGpu = {DeviceType::kCuda, 3};

class DeviceTensorsTest : public ::testing::Test {
 protected:
  DeviceContext context_{
      std::make_unique<FakeDeviceRuntime>(FakeDeviceOptions{.seed = 0, .memory_bytes = 1000})};
  Stream stream_ = *Stream::Create(context_);
  DeviceTensors tensors_{kGpu, stream_};
};

TEST_F(DeviceTensorsTest, TensorsAreZeroOnceTheStreamHasComeToThem) {
  const Tensor x(DType::kF32, {10, 2}, kGpu);
  EXPECT_EQ(x.device(), kGpu);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.view().data()) % 256, 0u);
  const auto copied = PinnedBuffer::Allocate(context_, x.view().bytes());
  Stream other = *Stream::Create(context_);
  const auto values_by = [&](Stream& stream) {
    stream.Copy(x.view().data(), x.view().bytes(), copied->data());
    EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
    const float* const data = static_cast<const float*>(copied->data());
    return std::vector<float>(data, data + 20);
  };
  EXPECT_NE(values_by(other)[19], 0);  // zeros are queued
  EXPECT_EQ(values_by(stream_), std::vector<float>(20));
}

TEST_F(DeviceTensorsTest, MemoryIsCountedByCategoryAndGivenBack) {
  const int64_t before = TensorMemory(MemoryCategory::kGradients).live_bytes;
  std::optional<Tensor> x;
  {
    const MemoryScope scope(MemoryCategory::kGradients);
    x.emplace(DType::kF32, Shape{20}, kGpu);
  }
  EXPECT_EQ(TensorMemory(MemoryCategory::kGradients).live_bytes - before, 80);
  EXPECT_EQ(context_.DescribeMemory(), "80 bytes of gradients");
  EXPECT_EQ(context_.runtime().Memory()->free_bytes, 920);
  x.reset();
  EXPECT_EQ(TensorMemory(MemoryCategory::kGradients).live_bytes, before);
  EXPECT_EQ(context_.DescribeMemory(), "nothing");
  EXPECT_EQ(stream_.Synchronize(), absl::OkStatus());
  EXPECT_EQ(context_.runtime().Memory()->free_bytes, 1000);
  EXPECT_EQ(context_.runtime().Memory()->total_bytes, 1000);
}

using DeviceTensorsDeathTest = DeviceTensorsTest;

TEST_F(DeviceTensorsTest, RunningOutNamesWhatTookTheMemory) {
  const MemoryScope scope(MemoryCategory::kWeights);
  const Tensor x(DType::kF32, {200}, kGpu);
  const MemoryScope inner(MemoryCategory::kActivations);
  const absl::Status status = CatchExceptions("go on", [] {
    const Tensor y(DType::kF32, {100}, kGpu);
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(
      status.message().find("400 bytes of activations do not fit beside 800 bytes of weights"),
      std::string::npos)
      << status;
}

TEST_F(DeviceTensorsTest, InAScopeRunningOutIsAnError) {
  const Tensor x(DType::kF32, {200}, kGpu);
  AllocationScope outer;
  const int64_t before = TensorMemory().live_bytes;
  {
    AllocationScope inner;
    const Tensor fits(DType::kF32, {10}, kGpu), large(DType::kF32, {100}, kGpu);
    EXPECT_FALSE(fits.view().empty());
    EXPECT_TRUE(large.view().empty());
    const absl::Status status = inner.End();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(status.message().find("400 bytes of other tensors do not fit beside 840 bytes"),
              std::string::npos)
        << status;
  }
  EXPECT_EQ(TensorMemory().live_bytes, before);
  EXPECT_EQ(outer.End(), absl::OkStatus());
  EXPECT_THROW(Tensor(DType::kF32, {100}, kGpu), NoMemory);
}

TEST_F(DeviceTensorsDeathTest, AnUnopenedDeviceHasNoTensors) {
  EXPECT_DEATH(Tensor(DType::kF32, {1}, {DeviceType::kCuda, 4}), "GPU 4 has not been opened");
}

}  // namespace
}  // namespace tessera
