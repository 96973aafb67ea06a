// The groups of the library and the operations built on them, for every size and with empty
// messages.

#include "checkpoint/include/process_group.h"

#include "absl/strings/str_cat.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/collective/testing/forwarding_group.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

std::string PartOf(int rank) { return std::string(rank % 3 == 1 ? 0 : rank * 37, 'a' + rank % 26); }

TEST(ProcessGroupTest, ScatterOverEverySize) {
  for (int size = 1; size <= 17; ++size) {
    SCOPED_TRACE(size);
    std::vector<std::string> parts;
    for (int r = 0; r < size; ++r) parts.push_back(PartOf(r));
    RunRanks(size, [&](ProcessGroup& group) {
      for (int round = 0; round < 2; ++round) {
        ASSERT_OK_AND_ASSIGN(
            const auto part,
            Scatter(group, group.rank() == 0 ? parts : std::vector<std::string>(), kTimeout));
        EXPECT_EQ(part, PartOf(group.rank()));
      }
    });
  }
}

TEST(ProcessGroupTest, GatherAndBroadcast) {
  RunRanks(5, [](ProcessGroup& group) {
    ASSERT_OK_AND_ASSIGN(const auto gathered, group.Gather(PartOf(group.rank()), kTimeout));
    if (group.rank() == 0) {
      EXPECT_THAT(gathered,
                  testing::ElementsAre(PartOf(0), PartOf(1), PartOf(2), PartOf(3), PartOf(4)));
    } else {
      EXPECT_TRUE(gathered.empty());
    }
    ASSERT_OK_AND_ASSIGN(const auto reply,
                         group.Broadcast(absl::StrCat("from ", group.rank()), kTimeout));
    EXPECT_EQ(reply, "from 0");
  });
}

TEST(ProcessGroupTest, MessagesOfAPairArriveInOrder) {
  RunRanks(2, [](ProcessGroup& group) {
    std::vector<std::byte> out(3), in(3);
    std::vector<std::unique_ptr<PendingMessage>> transfers;
    for (size_t i = 0; i < 3; ++i) {
      out[i] = static_cast<std::byte>(10 * group.rank() + i);
      transfers.push_back(group.StartSend({&out[i], 1}, 1 - group.rank()));
      transfers.push_back(group.StartReceive({&in[i], 1}, 1 - group.rank()));
    }
    for (auto& transfer : transfers) ASSERT_OK(transfer->Wait(kTimeout));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(in[i], static_cast<std::byte>(10 * (1 - group.rank()) + i));
    }
  });
}

TEST(ProcessGroupTest, ATransferThatNobodyAnswersEndsAndNamesThePeer) {
  RunRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return;
    std::vector<std::byte> data(8);
    const absl::Status status = group.StartReceive(data, 1)->Wait(absl::Milliseconds(20));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status));
    EXPECT_EQ(status.message(), "missing ranks: 1");
  });
}

TEST(ProcessGroupTest, ScatterNeedsAPartForEachRank) {
  SingleProcessGroup group;
  const std::vector<std::string> two = {"a", "b"};
  EXPECT_FALSE(Scatter(group, two, kTimeout).ok());
  ASSERT_OK_AND_ASSIGN(const auto part, Scatter(group, std::span(two).first(1), kTimeout));
  EXPECT_EQ(part, "a");
  EXPECT_TRUE(
      absl::IsUnavailable(group.StartSend(std::as_bytes(std::span(two[0])), 0)->Wait(kTimeout)));
}

// Loses the end of what is broadcast.
class TornGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  absl::StatusOr<std::string> Broadcast(std::string_view from_rank_0,
                                        absl::Duration timeout) override {
    TESSERA_ASSIGN_OR_RETURN(std::string reply, ForwardingGroup::Broadcast(from_rank_0, timeout));
    return reply.substr(0, reply.size() - 1);
  }
};

// The other ranks go on, and wait for this one elsewhere.
TEST(ProcessGroupTest, ARankThatDoesNotUnderstandTheVerdictLeavesTheGroup) {
  RunRanks(2, [](ProcessGroup& base) {
    TornGroup torn(base);
    ProcessGroup& group = base.rank() == 1 ? static_cast<ProcessGroup&>(torn) : base;
    const absl::Status agreed = AgreeOnStatus(group, absl::AbortedError("no"), kTimeout);
    EXPECT_EQ(absl::IsAborted(agreed), base.rank() == 0) << agreed;
    EXPECT_EQ(base.abandoned().ok(), base.rank() == 0) << base.abandoned();
  });
}

// Ranks fail in different ways. The first one's code counts, but lack of space does wherever it is.
TEST(ProcessGroupTest, LackOfSpaceOfAnyRankIsThatOfAll) {
  const absl::Status other = absl::UnavailableError("Input/output error");
  for (const int full : {0, 1, 2}) {
    RunRanks(3, [&](ProcessGroup& group) {
      absl::Status mine = group.rank() == full ? NoSpaceError("the disk is full") : other;
      if (group.rank() == (full + 1) % 3) mine = absl::OkStatus();
      const absl::Status agreed = AgreeOnStatus(group, mine, kTimeout);
      EXPECT_TRUE(IsNoSpace(agreed)) << agreed;
      EXPECT_THAT(std::string(agreed.message()),
                  testing::AllOf(testing::HasSubstr("Input/output error"),
                                 testing::HasSubstr("the disk is full")));
      const absl::Status without = AgreeOnStatus(group, other, kTimeout);
      EXPECT_FALSE(IsNoSpace(without)) << without;
    });
  }
}

}  // namespace
}  // namespace tessera::ckpt
