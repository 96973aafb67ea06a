// A message of a shared load that fails on one side: no rank takes the load for complete, and no
// later load takes what is left of it.

#include <atomic>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/load/host_memory.h"
#include "checkpoint/testing/test_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/memory_storage.h"

namespace tessera::ckpt {
namespace {

// The messages of agreements are smaller.
constexpr size_t kContentsBytes = 4096;

// Sends the contents of files, and returns errors for them nevertheless, on one side.
class CutGroup final : public ForwardingGroup {
 public:
  CutGroup(ProcessGroup& base, bool sends) : ForwardingGroup(base), sends_(sends) {}
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    return Cut(sends_ && data.size() >= kContentsBytes,
               ForwardingGroup::StartSend(data, destination));
  }
  std::unique_ptr<PendingMessage> StartReceive(std::span<std::byte> data, int source) override {
    return Cut(!sends_ && data.size() >= kContentsBytes,
               ForwardingGroup::StartReceive(data, source));
  }

 private:
  static std::unique_ptr<PendingMessage> Cut(bool fails, std::unique_ptr<PendingMessage> message) {
    if (!fails) return message;
    return std::make_unique<Failed>(std::move(message));
  }

  struct Failed final : PendingMessage {
    explicit Failed(std::unique_ptr<PendingMessage> base) : base(std::move(base)) {}
    absl::Status Wait(absl::Duration timeout) override {
      const absl::Status status = base->Wait(timeout);
      return status.ok() ? absl::UnavailableError("the cable is cut") : status;
    }
    const std::unique_ptr<PendingMessage> base;
  };

  const bool sends_;
};

TEST(FailedMessageTest, AFailedMessageFailsTheLoadOfAllRanksAndEveryLaterOne) {
  std::mt19937_64 random(1);
  const std::vector<WholeTensor> tensors = {
      RandomTensor("w", TensorRole::kWeight, DType::kF32, {64, 96}, random)};
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, RowsOf(tensors).dict));
  AllowHostMemory(false);
  for (const bool sends : {true, false}) {
    SCOPED_TRACE(sends ? "a send" : "a receive");
    std::atomic<int> abandoned = 0;
    RunRanks(2, [&](ProcessGroup& base) {
      CutGroup group(base, sends);
      LocalState state = RowsOf(tensors, 0, 1, /*fill=*/false);
      const auto load = [&](ProcessGroup& on) {
        LoadOptions options = On(on, LoadOptions());
        options.timeout = absl::Seconds(1);
        return LoadCheckpoint(storage, "step-00000001", state.dict, options).status();
      };
      // The other rank learns the reason: the group is abandoned after the agreement.
      EXPECT_THAT(std::string(load(group).message()), testing::HasSubstr("the cable is cut"));
      abandoned += base.abandoned().ok() ? 0 : 1;
      EXPECT_FALSE(load(base).ok());
    });
    EXPECT_EQ(abandoned, 1) << "the rank whose message failed";
  }
  AllowHostMemory(true);
}

}  // namespace
}  // namespace tessera::ckpt
