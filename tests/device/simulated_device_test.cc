// A step of training on simulated devices: kernels write gradients, NCCL moves them, a kernel sums
// them on the communication stream, another one updates the state, and a copy stream stages the
// state to pinned memory while the next step begins. Each wait for an event is left out in turn.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/comm/nccl/device_reducer.h"
#include "compute/comm/nccl/nccl_world.h"
#include "compute/comm/nccl/testing/fake_nccl.h"
#include "compute/comm/threads/thread_world.h"
#include "compute/device/kernel_reducer.h"
#include "compute/kernels/cuda/kernel_stream.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/tensor/device.h"
#include "compute/tensor/fake_device_runtime.h"

namespace tessera {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 4;
constexpr int64_t kCount = 700;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(float));
constexpr int kThreads = 64;

TESSERA_KERNEL void WriteGradient(float value, int64_t count, float* gradient) {
  const int64_t i = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (i < count) gradient[i] = value + static_cast<float>(i % 7);
}

TESSERA_KERNEL void Update(const float* gradient, int64_t count, float* state) {
  const int64_t i = simt::BlockX() * simt::ThreadCount() + simt::ThreadIndex();
  if (i < count) state[i] += gradient[i];
}

// What the state holds after `step` steps: small integers, which fp32 adds without rounding.
float StateAfter(int step, int64_t i) {
  float state = 0;
  for (int s = 1; s <= step; ++s) {
    for (int rank = 0; rank < kRanks; ++rank) {
      state += static_cast<float>(10 * s + rank) + static_cast<float>(i % 7);
    }
  }
  return state;
}

bool Holds(const void* data, int step) {
  for (int64_t i = 0; i < kCount; ++i) {
    if (static_cast<const float*>(data)[i] != StateAfter(step, i)) return false;
  }
  return true;
}

// One rank's device, and a training loop on it.
class Trainer {
 public:
  Trainer(FakeDeviceRuntime& device, Stream& compute, Stream& copy, Communicator& comm)
      : device_(device), compute_(compute), copy_(copy), comm_(comm), kernels_(compute) {}

  // DataLoss where a staged copy is not the state of its step.
  absl::Status Run() {
    DeviceContext& context = compute_.context();
    TESSERA_ASSIGN_OR_RETURN(const DeviceBuffer gradient,
                             DeviceBuffer::Allocate(compute_, kBytes, "gradients"));
    TESSERA_ASSIGN_OR_RETURN(const DeviceBuffer state,
                             DeviceBuffer::Allocate(compute_, kBytes, "state"));
    TESSERA_ASSIGN_OR_RETURN(const PinnedBuffer even, PinnedBuffer::Allocate(context, kBytes));
    TESSERA_ASSIGN_OR_RETURN(const PinnedBuffer odd, PinnedBuffer::Allocate(context, kBytes));
    const auto staged = [&](int step) { return step % 2 == 0 ? even.data() : odd.data(); };
    TESSERA_ASSIGN_OR_RETURN(Event updated, Event::Create(context));
    TESSERA_ASSIGN_OR_RETURN(Event copied, Event::Create(context));
    float* const g = static_cast<float*>(gradient.data());
    float* const s = static_cast<float*>(state.data());
    device_.Enqueue(compute_.handle(), [s] { std::fill(s, s + kCount, 0.0f); });
    const simt::Grid grid = {simt::BlocksOf(kCount, kThreads)};
    for (int step = 1; step <= kSteps; ++step) {
      simt::Launch<WriteGradient>(grid, kThreads, 0, kernels_.get(),
                                  static_cast<float>(10 * step + comm_.rank()), kCount, g);
      TESSERA_RETURN_IF_ERROR(comm_.AllReduce(Buffer(g, CommType::kF32, kCount), ReduceOp::kSum));
      if (step > 1) compute_.Wait(copied);
      simt::Launch<Update>(grid, kThreads, 0, kernels_.get(), static_cast<const float*>(g), kCount,
                           s);
      updated.Record(compute_);
      copy_.Wait(updated);
      copy_.Copy(s, kBytes, staged(step));
      copied.Record(copy_);
      // Nothing but the update asks for the copy before it.
      TESSERA_RETURN_IF_ERROR(compute_.Synchronize());
      if (step > 1) TESSERA_RETURN_IF_ERROR(CheckStaged(staged(step - 1), step - 1));
    }
    compute_.Wait(copied);
    TESSERA_RETURN_IF_ERROR(compute_.Synchronize());
    return CheckStaged(staged(kSteps), kSteps);
  }

 private:
  static absl::Status CheckStaged(const void* data, int step) {
    if (Holds(data, step)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("the staged copy of step ", step));
  }

  FakeDeviceRuntime& device_;
  Stream& compute_;
  Stream& copy_;
  Communicator& comm_;
  cuda::KernelStream kernels_;
};

// The waits of one step, in the order in which the program asks for them.
enum Wait { kCommunicationAfterGradient, kUpdateAfterStaging, kStagingAfterUpdate, kNoWait };

// Which of them a rank's wait number `number` is: the first step does not wait for a staged copy.
Wait WaitOfNumber(int64_t number) {
  if (number == 0) return kCommunicationAfterGradient;
  if (number == 1) return kStagingAfterUpdate;
  if (number == 2 + 3 * (kSteps - 1)) return kNoWait;  // at the end
  return static_cast<Wait>((number - 2) % 3);
}

struct FakeGpu {
  FakeGpu(uint64_t seed, std::shared_ptr<FakeFabric> fabric, Wait missing) {
    auto owned = std::make_unique<FakeDeviceRuntime>(FakeDeviceOptions{
        .seed = seed, .fabric = std::move(fabric), .drops_wait = [missing](int64_t number) {
          return missing != kNoWait && WaitOfNumber(number) == missing;
        }});
    runtime = owned.get();
    context = std::make_unique<DeviceContext>(std::move(owned));
  }
  FakeDeviceRuntime* runtime;
  std::unique_ptr<DeviceContext> context;
};

absl::Status TrainOnSimulatedDevices(uint64_t seed, Wait missing) {
  const auto fabric = std::make_shared<FakeFabric>();
  FakeNcclNet net(fabric);
  std::vector<std::unique_ptr<FakeGpu>> gpus;
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    gpus.push_back(
        std::make_unique<FakeGpu>(seed == 0 ? 0 : seed * kRanks + rank, fabric, missing));
  }
  ThreadWorld world(kRanks);
  return world.Run([&](Communicator& host) -> absl::Status {
    FakeGpu& gpu = *gpus[static_cast<size_t>(host.rank())];
    FakeNccl nccl(net, *gpu.runtime, {.seed = seed * kRanks + static_cast<uint64_t>(host.rank())});
    TESSERA_ASSIGN_OR_RETURN(Stream compute, Stream::Create(*gpu.context));
    TESSERA_ASSIGN_OR_RETURN(Stream copy, Stream::Create(*gpu.context));
    const std::unique_ptr<DeviceReducer> reducer = MakeKernelReducer();
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> ranks,
                             NcclWorld::Create(host, nccl, compute, *reducer));
    const absl::Status status = Trainer(*gpu.runtime, compute, copy, ranks->world()).Run();
    if (!status.ok()) host.Abort(status);
    return status;
  });
}

TEST(SimulatedDeviceTest, AStepIsRightInEveryOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(TrainOnSimulatedDevices(seed, kNoWait), absl::OkStatus()) << seed;
  }
}

int Failures(Wait missing) {
  int failures = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    failures += !TrainOnSimulatedDevices(seed, missing).ok();
  }
  return failures;
}

TEST(SimulatedDeviceTest, CommunicationThatDoesNotWaitForTheGradientIsFound) {
  EXPECT_GT(Failures(kCommunicationAfterGradient), 0);
}

TEST(SimulatedDeviceTest, AnUpdateThatDoesNotWaitForTheStagedCopyIsFound) {
  EXPECT_GT(Failures(kUpdateAfterStaging), 0);
}

TEST(SimulatedDeviceTest, AStagedCopyThatDoesNotWaitForTheUpdateIsFound) {
  EXPECT_GT(Failures(kStagingAfterUpdate), 0);
}

}  // namespace
}  // namespace tessera
