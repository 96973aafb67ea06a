#include "trainer/state/communicator_group.h"

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

TEST(CommunicatorGroupTest, GathersBroadcastsAndExchanges) {
  for (const int size : {1, 2, 5}) {
    EXPECT_OK(ThreadWorld(size).Run([&](Communicator& comm) -> absl::Status {
      CommunicatorGroup group(comm);
      EXPECT_EQ(group.rank(), comm.rank());
      EXPECT_EQ(group.size(), size);
      TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                               group.Gather("from " + std::to_string(group.rank()), kTimeout));
      EXPECT_EQ(gathered.size(), group.rank() == 0 ? size : 0);
      for (size_t i = 0; i < gathered.size(); ++i) {
        EXPECT_EQ(gathered[i], "from " + std::to_string(i));
      }
      TESSERA_ASSIGN_OR_RETURN(const std::string reply,
                               group.Broadcast(group.rank() == 0 ? "to all" : "unheard", kTimeout));
      EXPECT_EQ(reply, "to all");
      if (size == 1) return absl::OkStatus();

      // Two messages to the next rank, the second after the first.
      const std::string first = "one of " + std::to_string(group.rank()), second = "two";
      const int next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
      std::vector<char> first_in(first.size()), second_in(second.size());
      const auto bytes = [](auto& memory) { return std::as_bytes(std::span(memory)); };
      const auto writable = [](auto& memory) { return std::as_writable_bytes(std::span(memory)); };
      std::vector<std::unique_ptr<ckpt::PendingMessage>> transfers;
      transfers.push_back(group.StartReceive(writable(first_in), previous));
      transfers.push_back(group.StartReceive(writable(second_in), previous));
      transfers.push_back(group.StartSend(bytes(first), next));
      transfers.push_back(group.StartSend(bytes(second), next));
      for (const auto& transfer : transfers) TESSERA_RETURN_IF_ERROR(transfer->Wait(kTimeout));
      EXPECT_EQ(std::string(first_in.begin(), first_in.end()),
                "one of " + std::to_string(previous));
      EXPECT_EQ(std::string(second_in.begin(), second_in.end()), "two");
      return absl::OkStatus();
    }));
  }
}

TEST(CommunicatorGroupTest, AWaitEndsAtItsDeadlineNamingTheMissingRank) {
  ThreadWorld world(2);
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    CommunicatorGroup group(comm);
    if (comm.rank() == 1) {
      // Waits until the other rank has given up.
      return comm.Barrier({.timeout = kTimeout});
    }
    return group.Gather("mine", absl::Milliseconds(100)).status();
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("waiting for rank 1"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("checkpoint"), absl::string_view::npos) << status;
}

TEST(CommunicatorGroupTest, WithoutAWorldThereIsOneProcess) {
  const std::unique_ptr<ckpt::ProcessGroup> group = MakeProcessGroup(nullptr);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
}

}  // namespace
}  // namespace tessera
