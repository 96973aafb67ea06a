#include "checkpoint/collective/hosts.h"

#include <filesystem>

#include "base/testing.h"
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

}  // namespace
}  // namespace tessera::ckpt
