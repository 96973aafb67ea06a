#include "trainer/state/device_mirror.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layout/dtype.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {
namespace {

constexpr int64_t kElements = 1000;

// Device memory whose contents the work of a stream sets.
class DeviceMirrorTest : public ::testing::Test {
 protected:
  void Open(const FakeDeviceOptions& options, const DeviceMirrorOptions& mirror_options) {
    auto runtime = std::make_unique<FakeDeviceRuntime>(options);
    runtime_ = runtime.get();
    context_ = std::make_unique<DeviceContext>(std::move(runtime));
    compute_ = std::make_unique<Stream>(Stream::Create(*context_).value());
    memory_ = std::make_unique<DeviceBuffer>(
        DeviceBuffer::Allocate(*compute_, kElements * sizeof(float), "state").value());
    const std::vector<TensorView> buffers = {state()};
    mirror_ = DeviceMirror::Create(*compute_, buffers, mirror_options).value();
  }
  void TearDown() override {
    mirror_ = nullptr;
    memory_ = nullptr;
    compute_ = nullptr;
    context_ = nullptr;
  }

  TensorView state() const { return {memory_->data(), DType::kF32, {kElements}}; }
  std::vector<float> OnHost() const {
    const auto* values = mirror_->OnHost(state()).as<float>();
    return {values, values + kElements};
  }
  // Queued on the compute stream.
  void Set(float value) {
    auto* const values = state().as<float>();
    runtime_->Enqueue(compute_->handle(),
                      [values, value] { std::fill(values, values + kElements, value); });
  }

  FakeDeviceRuntime* runtime_ = nullptr;
  std::unique_ptr<DeviceContext> context_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<DeviceMirror> mirror_;
};

std::vector<float> All(float value) { return std::vector<float>(kElements, value); }

TEST(MirrorPieceBytesTest, ACopyHidesTheFixedCostOfTheNext) {
  constexpr int64_t kMiB = 1 << 20;
  // 10 us, and 48 GiB/s: a 32nd of the time of 15.4 MiB; with a slower engine, of fewer.
  const auto seconds = [](double gib) { return 10e-6 + 16 / (gib * 1024); };
  EXPECT_EQ(MirrorPieceBytes(10e-6, seconds(48), 16 * kMiB), 16 * kMiB);
  EXPECT_EQ(MirrorPieceBytes(10e-6, seconds(12), 16 * kMiB), 4 * kMiB);
  EXPECT_EQ(MirrorPieceBytes(10e-6, seconds(1), 16 * kMiB), kMiB);
  EXPECT_EQ(MirrorPieceBytes(1e-3, seconds(400), 16 * kMiB), 64 * kMiB);
  EXPECT_EQ(MirrorPieceBytes(1e-3, 1e-4, 4096), 64 * kMiB) << "the clock has stood still";
  EXPECT_EQ(MirrorPieceBytes(0, 0, 1), kMiB);
}

TEST_F(DeviceMirrorTest, MeasuringThePiecesLeavesZeros) {
  Open({.at_once = true}, {});
  EXPECT_EQ(OnHost(), All(0));
  Set(1);
  mirror_->StartDownload();
  ASSERT_EQ(mirror_->FinishDownload(), absl::OkStatus());
  EXPECT_EQ(OnHost(), All(1));
}

// Nothing waits for the compute stream here but the copies themselves.
TEST_F(DeviceMirrorTest, ADownloadComesAfterWhatTheComputeStreamHoldsAlready) {
  Open({.seed = 0}, {.piece_bytes = 512});
  Set(1);
  mirror_->StartDownload();
  ASSERT_EQ(mirror_->FinishDownload(), absl::OkStatus());
  EXPECT_EQ(OnHost(), All(1));
}

TEST_F(DeviceMirrorTest, WithoutItsWaitADownloadComesTooEarly) {
  Open({.seed = 0, .drops_wait = [](int64_t) { return true; }}, {.piece_bytes = 512});
  Set(1);
  mirror_->StartDownload();
  ASSERT_EQ(mirror_->FinishDownload(), absl::OkStatus());
  EXPECT_NE(OnHost(), All(1));
}

TEST_F(DeviceMirrorTest, WhatIsQueuedAfterBeforeOverwriteComesAfterTheDownload) {
  for (const double bytes_per_second : {0.0, 1.0}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      TearDown();
      Open({.seed = seed}, {.piece_bytes = 512, .bytes_per_second = bytes_per_second});
      Set(1);
      mirror_->StartDownload();
      mirror_->BeforeOverwrite(state());
      Set(2);
      ASSERT_EQ(compute_->Synchronize(), absl::OkStatus());
      ASSERT_EQ(mirror_->FinishDownload(), absl::OkStatus());
      ASSERT_EQ(OnHost(), All(1)) << seed << " at " << bytes_per_second;
    }
  }
}

// Work runs as late as it may: what is copied when the compute stream has ended is what it has
// waited for.
TEST_F(DeviceMirrorTest, AnUpdateWaitsForTheSamePartOfAllBuffers) {
  Open({.seed = 0}, {});
  const TensorView first = state().Slice(0, 0, kElements / 2);
  const TensorView second = state().Slice(0, kElements / 2, kElements);
  const std::vector<TensorView> buffers = {first, second};
  mirror_ = DeviceMirror::Create(*compute_, buffers, {.piece_bytes = 400}).value();
  Set(1);
  mirror_->StartDownload();
  for (const TensorView& buffer : buffers) mirror_->BeforeOverwrite(buffer.Slice(0, 0, 100));
  ASSERT_EQ(compute_->Synchronize(), absl::OkStatus());
  for (const TensorView& buffer : buffers) {
    const auto* const host = mirror_->OnHost(buffer).as<float>();
    EXPECT_EQ(host[0], 1);
    EXPECT_EQ(host[99], 1);
    EXPECT_EQ(host[100], 0);
    EXPECT_EQ(host[kElements / 2 - 1], 0);
  }
  ASSERT_EQ(mirror_->FinishDownload(), absl::OkStatus());
  EXPECT_EQ(mirror_->OnHost(first).as<float>()[kElements / 2 - 1], 1);
}

TEST_F(DeviceMirrorTest, AnUploadComesAfterWhatUsesTheOldState) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    TearDown();
    Open({.seed = seed}, {.piece_bytes = 512});
    auto* const host = mirror_->OnHost(state()).as<float>();
    std::fill(host, host + kElements, 3.0f);
    float seen = 0;
    Set(1);
    runtime_->Enqueue(compute_->handle(), [&, values = state().as<float>()] { seen = values[0]; });
    ASSERT_EQ(mirror_->Upload(), absl::OkStatus());
    EXPECT_EQ(seen, 1);
    std::fill(host, host + kElements, 4.0f);
    mirror_->StartDownload();
    ASSERT_EQ(mirror_->FinishDownload(), absl::OkStatus());
    EXPECT_EQ(OnHost(), All(3)) << seed;
  }
}

}  // namespace
}  // namespace tessera
