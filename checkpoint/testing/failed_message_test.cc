// A message that fails, or is not understood, on one side. No rank takes the load for complete, and
// no later load takes what is left of it. A save that is committed has succeeded on every rank, and
// one that is lost has its files until the next one.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
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
      const auto load = [&](ProcessGroup& on, absl::Duration timeout) {
        LoadOptions options = On(on, LoadOptions());
        options.timeout = timeout;
        return LoadCheckpoint(storage, "step-00000001", state.dict, options).status();
      };
      // The other rank learns the reason: the group is abandoned after the agreement.
      EXPECT_THAT(std::string(load(group, absl::Hours(1)).message()),
                  testing::HasSubstr("the cable is cut"));
      abandoned += base.abandoned().ok() ? 0 : 1;
      EXPECT_FALSE(load(base, absl::Milliseconds(20)).ok());
    });
    EXPECT_EQ(abandoned, 1) << "the rank whose message failed";
  }
  AllowHostMemory(true);
}

// Destroys an answer of rank 0 within the message that carries it.
class GarblingGroup final : public ForwardingGroup {
 public:
  GarblingGroup(ProcessGroup& base, int broadcast) : ForwardingGroup(base), left_(broadcast) {}
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    constexpr size_t kHeaderBytes = 2;
    absl::StatusOr<std::string> reply = ForwardingGroup::Broadcast(from_rank_0, timeout);
    if (reply.ok() && left_-- == 0) {
      EXPECT_GT(reply->size(), kHeaderBytes) << "an answer without contents";
      std::fill(reply->begin() + kHeaderBytes, reply->end(), '\xff');
    }
    return reply;
  }

 private:
  int left_;
};

// The other rank has parsed the verdict, and continues.
TEST(FailedMessageTest, ARankThatDoesNotUnderstandTheVerdictLeavesTheGroup) {
  std::mt19937_64 random(1);
  std::vector<WholeTensor> tensors = {
      RandomTensor("w", TensorRole::kWeight, DType::kF32, {64, 96}, random),
      RandomTensor("unexpected", TensorRole::kWeight, DType::kF32, {1}, random)};
  MemoryStorage storage;
  ASSERT_OK(CheckpointFolder(storage).Save(1, RowsOf(tensors).dict));
  tensors.pop_back();
  RunRanks(2, [&](ProcessGroup& base) {
    GarblingGroup garbling(base, 1);
    ImpatientGroup impatient(base, 2);
    ProcessGroup& group = base.rank() == 1 ? static_cast<ProcessGroup&>(garbling) : impatient;
    LocalState state = RowsOf(tensors, 0, 1, /*fill=*/false);
    const LoadOptions options = On(group, LoadOptions{.allow_unexpected = true});
    const auto loaded = LoadCheckpoint(storage, "step-00000001", state.dict, options);
    EXPECT_EQ(absl::IsInternal(loaded.status()), base.rank() == 1) << loaded.status();
    EXPECT_EQ(absl::IsDeadlineExceeded(loaded.status()), base.rank() == 0) << loaded.status();
    EXPECT_FALSE(base.abandoned().ok());
  });
}

// The checkpoint is there, so that no rank may say that the save has failed.
TEST(FailedMessageTest, ARankThatDoesNotUnderstandTheLastAnswerOfASaveHasSaved) {
  std::mt19937_64 random(1);
  const std::vector<WholeTensor> tensors = {
      RandomTensor("w", TensorRole::kWeight, DType::kF32, {64, 96}, random)};
  MemoryStorage storage;
  RunRanks(2, [&](ProcessGroup& base) {
    GarblingGroup garbling(base, 0);
    ProcessGroup& group = base.rank() == 1 ? static_cast<ProcessGroup&>(garbling) : base;
    const LocalState state = RowsOf(tensors, base.rank(), 2);
    const auto saved = CheckpointFolder(storage).Save(1, state.dict, On(group, SaveOptions()));
    EXPECT_OK(saved.status());
    EXPECT_EQ(base.abandoned().ok(), base.rank() == 0) << "no later message is understood";
  });
  EXPECT_EQ(CheckpointFolder(storage).List()->size(), 1);
}

// Fails on both ranks at the agreement with which a save commits or, on rank 0, before: as it sends
// the plans. Rank 0's message then fails once rank 1 has written its files.
class LostGroup final : public ForwardingGroup {
 public:
  LostGroup(ProcessGroup& base, bool at_plans) : ForwardingGroup(base), at_plans_(at_plans) {}
  absl::StatusOr<std::vector<std::string>> Gather(std::string_view mine,
                                                  absl::Duration timeout) override {
    auto gathered = ForwardingGroup::Gather(mine, timeout);
    if (++gathers_ == 2) return absl::UnavailableError("the cable is cut");
    return gathered;
  }
  std::unique_ptr<PendingMessage> StartSend(std::span<const std::byte> data,
                                            int destination) override {
    auto message = ForwardingGroup::StartSend(data, destination);
    if (!at_plans_) return message;
    return std::make_unique<Lost>(*this, std::move(message));
  }

 private:
  struct Lost final : PendingMessage {
    Lost(LostGroup& group, std::unique_ptr<PendingMessage> base)
        : group(group), base(std::move(base)) {}
    absl::Status Wait(absl::Duration timeout) override {
      TESSERA_RETURN_IF_ERROR(base->Wait(timeout));
      return group.Gather("", timeout).status();
    }
    LostGroup& group;
    const std::unique_ptr<PendingMessage> base;
  };

  const bool at_plans_;
  int gathers_ = 0;
};

// They may still write, and need their directory.
TEST(FailedMessageTest, ARank0ThatHasLostTheOthersDeletesNothingOfTheirSave) {
  std::mt19937_64 random(1);
  const std::vector<WholeTensor> tensors = {
      RandomTensor("w", TensorRole::kWeight, DType::kF32, {64, 96}, random)};
  for (const bool at_plans : {false, true}) {
    SCOPED_TRACE(at_plans ? "as it sends the plans" : "before it knows what they have written");
    MemoryStorage storage;
    RunRanks(2, [&](ProcessGroup& base) {
      LostGroup group(base, at_plans);
      const LocalState state = RowsOf(tensors, base.rank(), 2);
      const auto saved = CheckpointFolder(storage).Save(1, state.dict, On(group, SaveOptions()));
      EXPECT_TRUE(absl::IsUnavailable(saved.status())) << saved.status();
    });
    ASSERT_OK_AND_ASSIGN(const auto files, storage.List("step-00000001"));
    EXPECT_EQ(files.size(), at_plans ? 1 : 2);
    ASSERT_OK(CheckpointFolder(storage).Save(1, RowsOf(tensors).dict));
  }
}

}  // namespace
}  // namespace tessera::ckpt
