// Ranks know who shares a host and a folder with them, and copies go to another machine.

#include "checkpoint/collective/hosts.h"

#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/testing.h"
#include "checkpoint/collective/rank_message.pb.h"
#include "checkpoint/collective/testing/thread_process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/posix_storage.h"

namespace tessera::ckpt {
namespace {

constexpr absl::Duration kHostsTimeout = absl::Seconds(20);

// Ranks 0 and 2 share a folder, and rank 1 has one of its own.
TEST(HostsTest, RanksThatSeeOneFolderAreOnOneHost) {
  const TestFolder folder;
  RunRanks(3, [&](ProcessGroup& group) {
    const std::string path = folder.File(group.rank() == 1 ? "b" : "a");
    ASSERT_OK_AND_ASSIGN(const auto storage, OpenPosixStorage(path, {.create_root = true}));
    ASSERT_OK_AND_ASSIGN(const Hosts hosts, Hosts::Find(group, *storage, "", kHostsTimeout));
    EXPECT_EQ(hosts.count(), 2);
    EXPECT_EQ(hosts.of(0), hosts.of(2));
  });
}

// Such a rank is on the host of the others, whose memory it would take for another host's.
TEST(HostsTest, AFolderThatHasVanishedIsAnErrorOnAllRanks) {
  const TestFolder folder;
  const std::string path = folder.File("replicas"), gone = folder.File("gone");
  RunRanks(3, [&](ProcessGroup& group) {
    ASSERT_OK_AND_ASSIGN(const auto storage,
                         OpenPosixStorage(group.rank() == 1 ? gone : path, {.create_root = true}));
    if (group.rank() == 1) std::filesystem::remove(gone);
    const absl::Status status = Hosts::Find(group, *storage, "", kHostsTimeout).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(testing::HasSubstr("rank 1: "), testing::HasSubstr(gone)));
  });
}

// Returns the hosts of ranks that are each in a container of their own on these machines.
Hosts Containers(const std::vector<int>& machine_of_rank) {
  HostPlaces places;
  for (const int machine : machine_of_rank) {
    RankPlace& place = *places.add_ranks();
    const std::string id = absl::StrCat("boot", machine, " ", places.ranks_size());
    place.set_folder_id(id);
    place.set_volume_id(id);
    place.set_machine_id(absl::StrCat("boot", machine));
    place.set_host(absl::StrCat("pod", places.ranks_size() - 1));
  }
  return Hosts::Of(places);
}

TEST(HostsTest, CopiesGoToAnotherMachineWhateverTheContainers) {
  for (const std::vector<int>& machines :
       std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 2}, {0, 1, 2}}) {
    SCOPED_TRACE(testing::PrintToString(machines));
    const Hosts hosts = Containers(machines);
    std::map<int, int> copies;
    for (size_t rank = 0; rank < machines.size(); ++rank) {
      const std::optional<int> peer = hosts.peer(static_cast<int>(rank));
      ASSERT_TRUE(peer.has_value());
      EXPECT_NE(machines[*peer], machines[rank]) << rank;
      ++copies[*peer];
    }
    for (const auto& [peer, count] : copies) EXPECT_LE(count, 2) << peer;
  }
  EXPECT_EQ(Containers({0, 0, 1}).Describe(), "3 hosts (pod0, pod1, pod2) on 2 machines");
  // They survive the loss of a container.
  EXPECT_EQ(Containers({0, 0}).peer(1), 0);
  EXPECT_EQ(Containers({0, 0}).Describe(), "2 hosts (pod0, pod1) on one machine");
}

}  // namespace
}  // namespace tessera::ckpt
