// A message of a shared load that its sender cannot send: no rank takes the load for complete.

#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/testing/test_state.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

// The messages of agreements are smaller.
constexpr size_t kContentsBytes = 4096;

// Sends the contents of files, and returns errors for them nevertheless.
class FailedSendsGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    std::unique_ptr<PendingMessage> message = ForwardingGroup::StartSend(data, destination);
    if (data.size() < kContentsBytes) return message;
    return std::make_unique<Failed>(std::move(message));
  }

 private:
  struct Failed final : PendingMessage {
    explicit Failed(std::unique_ptr<PendingMessage> base) : base(std::move(base)) {}
    absl::Status Wait(absl::Duration timeout) override {
      const absl::Status status = base->Wait(timeout);
      return status.ok() ? absl::UnavailableError("the cable is cut") : status;
    }
    const std::unique_ptr<PendingMessage> base;
  };
};

TEST(FailedMessageTest, AMessageThatCannotBeSentFailsTheLoadOfAllRanks) {
  std::mt19937_64 random(1);
  const std::vector<WholeTensor> tensors = {
      RandomTensor("w", TensorRole::kWeight, DType::kF32, {64, 96}, random)};
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, RowsOf(tensors).dict));
  AllowHostMemory(false);
  RunRanks(2, [&](ProcessGroup& base) {
    FailedSendsGroup group(base);
    LocalState state = RowsOf(tensors, 0, 1, /*fill=*/false);
    LoadOptions options = On(group, LoadOptions());
    options.timeout = absl::Seconds(1);
    EXPECT_FALSE(LoadCheckpoint(storage, "step-00000001", state.dict, options).ok());
  });
  AllowHostMemory(true);
}

}  // namespace
}  // namespace tessera::ckpt
