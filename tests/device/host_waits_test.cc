// How often the host waits for a GPU in a step. While it waits, nothing more is queued, and the GPU
// stands idle from then until the next launch.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/communicator.h"
#include "comm/threads/thread_world.h"
#include "compute/device/testing/simulated_device.h"
#include "tensor/testing/fake_device_runtime.h"
#include "tests/support/training.h"
#include "trainer/config/config.pb.h"

namespace tessera {
namespace {

constexpr int kLayers = 12;

struct StepCalls {
  int64_t kernels = 0, products = 0, copies = 0, allocations = 0, waits = 0;

  StepCalls operator-(const StepCalls& other) const {
    return {kernels - other.kernels, products - other.products, copies - other.copies,
            allocations - other.allocations, waits - other.waits};
  }
};

StepCalls CallsOf(const SimulatedDevice& gpu) {
  const FakeDeviceRuntime::Calls calls = gpu.runtime->calls();
  return {calls.kernels, gpu.cublaslt->products(), calls.copies, calls.allocations, calls.waits};
}

// Returns the calls of the second step of a GPT-2 with the layers of 124M.
StepCalls CallsOfStep(int64_t micro_batches) {
  const TestFolder folder;
  EXPECT_OK(testing::WriteTokens(folder.File("tokens.bin"), /*vocabulary=*/48, /*count=*/1000));
  const TrainConfig config = OrFail(testing::MakeConfig(
      {.model = absl::StrCat("size: \"gpt2-tiny\" num_layers: ", kLayers,
                             " hidden_size: 16 ffn_hidden_size: 64 num_attention_heads: 2 "
                             "vocab_size: 48 hidden_dropout: 0 attention_dropout: 0"),
       .tokens = folder.File("tokens.bin"),
       .bf16 = true,
       .micro_batch_size = 1,
       .global_batch_size = micro_batches,
       .seq_length = 8,
       .steps = 2,
       .bucket_elements = 40'000'000}));
  StepCalls calls;
  const std::unique_ptr<SimulatedDevice> gpu = OpenSimulatedDevice(0);
  ThreadWorld world(1);
  EXPECT_OK(world.Run([&](Communicator& host) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(gpu->runtime->Select());
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<testing::TrainingRank> rank,
        testing::TrainingRank::Create(config, /*seed=*/1, &host, /*log=*/nullptr,
                                      {.backend = gpu->backend.get()}));
    rank->Initialize();
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
    const StepCalls before = CallsOf(*gpu);
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
    calls = CallsOf(*gpu) - before;
    return absl::OkStatus();
  }));
  return calls;
}

// The host waits twice for the norm, of which the second ends at once, and at the end of the step.
TEST(HostWaitsTest, AreThoseOfAStepWhateverItsMicroBatches) {
  for (const int64_t micro_batches : {1, 2, 5}) {
    const StepCalls calls = CallsOfStep(micro_batches);
    EXPECT_EQ(calls.waits, 3) << micro_batches;
    EXPECT_EQ(calls.allocations, 0) << micro_batches;
  }
}

// Ids, targets and the loss are the copies of a micro-batch. The rest of a step is the norm, whose
// sums are copied once, and AdamW.
TEST(HostWaitsTest, AMicroBatchHasFewLaunches) {
  const StepCalls one = CallsOfStep(1), two = CallsOfStep(2);
  const StepCalls micro_batch = two - one, rest = one - micro_batch;
  EXPECT_EQ(micro_batch.copies, 3);
  EXPECT_EQ(rest.copies, 1);
  // Six forward, of which one has GELU; six of gradients of inputs, and of weights; the head's.
  EXPECT_EQ(micro_batch.products, 12 * kLayers + 3);
  RecordProperty("kernels_of_a_micro_batch", std::to_string(micro_batch.kernels));
  RecordProperty("kernels_of_the_rest", std::to_string(rest.kernels));
  EXPECT_LE(micro_batch.kernels, 30 * kLayers);
  EXPECT_LE(rest.kernels, 20);
}

}  // namespace
}  // namespace tessera
