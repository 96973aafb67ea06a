// The owning types over the fake device: correct pipelines pass in every order, and each missing
// wait fails in some.

#include "tensor/device.h"

#include <gtest/gtest.h>

#include "base/testing.h"
#include "tensor/testing/fake_device_runtime.h"

namespace tessera {
namespace {

constexpr int kSeeds = 200;
constexpr int64_t kCount = 16;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(int32_t));

struct FakeDevice {
  explicit FakeDevice(const FakeDeviceOptions& options) {
    auto owned = std::make_unique<FakeDeviceRuntime>(options);
    runtime = owned.get();
    context = std::make_unique<DeviceContext>(std::move(owned));
  }
  FakeDeviceRuntime* runtime;
  std::unique_ptr<DeviceContext> context;
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_OK(value);
  return *std::move(value);
}

// Fills a buffer with a number, on a stream.
void FillLater(FakeDeviceRuntime& runtime, const Stream& stream, const DeviceBuffer& buffer,
               int32_t value) {
  int32_t* const data = static_cast<int32_t*>(buffer.data());
  runtime.Enqueue(stream.handle(), [data, value] {
    for (int64_t i = 0; i < kCount; ++i) data[i] = value;
  });
}

bool Holds(const PinnedBuffer& buffer, int32_t value) {
  for (int64_t i = 0; i < kCount; ++i) {
    if (static_cast<const int32_t*>(buffer.data())[i] != value) return false;
  }
  return true;
}

// The waits of a staged save: each is left out in turn.
enum class Missing {
  kNothing,
  kCopyAfterCompute,
  kUpdateAfterCopy,
  kHostAfterCopy,
  kFreeAfterCopy
};

// Steps of training change the state on the compute stream; a copy stream stages it to pinned
// memory; the host reads it. Returns whether every save held the state of its step.
bool StagesEveryStep(uint64_t seed, Missing missing) {
  FakeDevice device({.seed = seed});
  Stream compute = Must(Stream::Create(*device.context));
  Stream copy = Must(Stream::Create(*device.context));
  Event computed = Must(Event::Create(*device.context));
  Event copied = Must(Event::Create(*device.context));
  const PinnedBuffer staged = Must(PinnedBuffer::Allocate(*device.context, kBytes));
  bool right = true;
  {
    const DeviceBuffer state = Must(DeviceBuffer::Allocate(compute, kBytes, "state"));
    for (int32_t step = 1; step <= 4; ++step) {
      FillLater(*device.runtime, compute, state, step);
      computed.Record(compute);
      if (missing != Missing::kCopyAfterCompute) copy.Wait(computed);
      copy.Copy(state.data(), kBytes, staged.data());
      copied.Record(copy);
      if (missing != Missing::kUpdateAfterCopy) compute.Wait(copied);
      // The next step overwrites the state while the host waits for the copy.
      FillLater(*device.runtime, compute, state, -step);
      if (missing != Missing::kHostAfterCopy) EXPECT_EQ(copied.Synchronize(), absl::OkStatus());
      right = right && Holds(staged, step);
    }
    copy.Copy(state.data(), kBytes, staged.data());
    copied.Record(copy);
    if (missing != Missing::kFreeAfterCopy) compute.Wait(copied);
  }
  const absl::Status freed = compute.Synchronize(), last = copy.Synchronize();
  return right && freed.ok() && last.ok();
}

TEST(DeviceTest, CorrectPipelinesPassInEveryOrder) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_TRUE(StagesEveryStep(seed, Missing::kNothing)) << seed;
  }
}

TEST(DeviceTest, EveryMissingWaitFails) {
  for (Missing missing : {Missing::kCopyAfterCompute, Missing::kUpdateAfterCopy,
                          Missing::kHostAfterCopy, Missing::kFreeAfterCopy}) {
    int failures = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) failures += !StagesEveryStep(seed, missing);
    EXPECT_GT(failures, 0) << "wait " << static_cast<int>(missing);
  }
}

TEST(DeviceTest, WithSeed0NothingRunsBeforeItMust) {
  FakeDevice device({});
  Stream stream = Must(Stream::Create(*device.context));
  Stream other = Must(Stream::Create(*device.context));
  Event event = Must(Event::Create(*device.context));
  std::string order;
  device.runtime->Enqueue(stream.handle(), [&] { order += "a"; });
  event.Record(stream);
  device.runtime->Enqueue(stream.handle(), [&] { order += "b"; });
  other.Wait(event);
  device.runtime->Enqueue(other.handle(), [&] { order += "c"; });
  EXPECT_EQ(order, "");
  EXPECT_FALSE(Must(event.IsDone()));
  EXPECT_EQ(other.Synchronize(), absl::OkStatus());
  EXPECT_EQ(order, "ac");
  EXPECT_TRUE(Must(event.IsDone()));
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  EXPECT_EQ(order, "acb");
}

TEST(DeviceTest, AnEventIsWaitedForAsLastRecordedBeforeTheWait) {
  FakeDevice device({});
  Stream stream = Must(Stream::Create(*device.context));
  Stream other = Must(Stream::Create(*device.context));
  Event event = Must(Event::Create(*device.context));
  std::string order;
  event.Record(stream);
  other.Wait(event);
  device.runtime->Enqueue(stream.handle(), [&] { order += "a"; });
  event.Record(stream);
  EXPECT_EQ(other.Synchronize(), absl::OkStatus());
  EXPECT_EQ(order, "");
  EXPECT_EQ(event.Synchronize(), absl::OkStatus());
  EXPECT_EQ(order, "a");
}

TEST(DeviceTest, WorkOfADestroyedStreamIsDone) {
  std::string order;
  {
    FakeDevice device({});
    const Stream stream = Must(Stream::Create(*device.context));
    device.runtime->Enqueue(stream.handle(), [&] { order += "a"; });
  }
  EXPECT_EQ(order, "a");
}

TEST(DeviceTest, OutOfMemoryNamesWhatTookIt) {
  FakeDevice device({.memory_bytes = 100});
  Stream stream = Must(Stream::Create(*device.context));
  const DeviceBuffer small = Must(DeviceBuffer::Allocate(stream, 20, "activations"));
  {
    const DeviceBuffer large = Must(DeviceBuffer::Allocate(stream, 50, "weights"));
    const absl::StatusOr<DeviceBuffer> refused = DeviceBuffer::Allocate(stream, 31, "gradients");
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
    EXPECT_EQ(
        refused.status().message(),
        "out of device memory: 31 bytes of gradients do not fit beside 50 bytes of weights, "
        "20 bytes of activations: the fake device has no more memory; the device has 100 bytes, "
        "of which 30 are free");
  }
  EXPECT_EQ(device.context->DescribeMemory(), "20 bytes of activations");
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  EXPECT_OK(DeviceBuffer::Allocate(stream, 80, "gradients"));
}

TEST(DeviceTest, TheFirstErrorIsKeptUntilItIsTaken) {
  FakeDevice device({});
  device.context->KeepError("a kernel", absl::OkStatus());
  EXPECT_EQ(device.context->TakeError(), absl::OkStatus());
  device.context->KeepError("a kernel", absl::InternalError("bad address"));
  device.context->KeepError("a copy", absl::InternalError("later"));
  Stream stream = Must(Stream::Create(*device.context));
  EXPECT_EQ(stream.Synchronize(), absl::InternalError("a kernel: bad address"));
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
}

TEST(DeviceTest, AThreadUsesTheDeviceThatItSelectedLast) {
  FakeDevice first({}), second({});
  EXPECT_TRUE(absl::IsFailedPrecondition(Stream::Create(*first.context).status()));
  ASSERT_EQ(first.context->runtime().Select(), absl::OkStatus());
  EXPECT_EQ(Stream::Create(*first.context).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(Event::Create(*second.context).status()));
}

// Every later call has the error of the work, and with it the operation that was queued last.
TEST(DeviceTest, AfterWorkThatFailedErrorsNameAnOperation) {
  FakeDevice device({});
  Stream stream = Must(Stream::Create(*device.context));
  device.context->SetOperation("GeluForward");
  device.runtime->Fail(stream.handle());
  const std::string failure =
      "an illegal memory access was encountered; GeluForward was queued last, and the error may be "
      "an earlier operation's: with TESSERA_CUDA_SYNC=1 it bears the name of its own";
  EXPECT_EQ(stream.Synchronize(), absl::InternalError("the work of a stream: " + failure));
  EXPECT_EQ(DeviceBuffer::Allocate(stream, 8, "weights").status(),
            absl::InternalError("allocating 8 bytes of weights: " + failure));
}

TEST(DeviceTest, CopiesAndFillsTakeTheDevicesMemoryAndPinnedMemory) {
  FakeDevice device({});
  ASSERT_EQ(device.context->runtime().Select(), absl::OkStatus());
  Stream stream = Must(Stream::Create(*device.context));
  const DeviceBuffer own = Must(DeviceBuffer::Allocate(stream, kBytes, "state"));
  const PinnedBuffer pinned = Must(PinnedBuffer::Allocate(*device.context, kBytes));
  char pageable[kBytes] = {};
  stream.Copy(pinned.data(), kBytes, own.data());
  stream.Copy(own.data(), kBytes, pinned.data());
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  const std::string neither = "touches memory that is neither the device's nor pinned";
  stream.Copy(pageable, kBytes, own.data());
  EXPECT_EQ(stream.Synchronize(), absl::InternalError("the work of a stream: a copy " + neither));
  stream.Copy(own.data(), kBytes + 1, pinned.data());
  EXPECT_EQ(stream.Synchronize(), absl::InternalError("the work of a stream: a copy " + neither));
  stream.Copy(own.data(), kBytes, static_cast<char*>(pinned.data()) + 1);
  EXPECT_EQ(stream.Synchronize(),
            absl::InternalError("the work of a stream: a copy touches more than a piece of pinned "
                                "memory"));
  stream.Zero(pinned.data(), kBytes);
  EXPECT_EQ(stream.Synchronize(),
            absl::InternalError("the work of a stream: a fill touches memory that is not the "
                                "device's"));
}

TEST(DeviceDeathTest, HostCodeThatTouchesTheDevicesMemoryIsABug) {
  FakeDevice device({});
  Stream stream = Must(Stream::Create(*device.context));
  const DeviceBuffer own = Must(DeviceBuffer::Allocate(stream, kBytes, "state"));
  EXPECT_DEATH(static_cast<char*>(own.data())[3] = 1, "host code touches memory of a device");
}

TEST(DeviceDeathTest, WaitingForAnEventThatWasNotRecordedIsABug) {
  FakeDevice device({});
  Stream stream = Must(Stream::Create(*device.context));
  const Event event = Must(Event::Create(*device.context));
  EXPECT_DEATH(stream.Wait(event), "not recorded");
}

}  // namespace
}  // namespace tessera
