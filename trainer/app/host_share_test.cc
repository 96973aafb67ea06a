#include "trainer/app/host_share.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/status_macros.h"
#include "base/testing.h"
#include "comm/threads/thread_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(HostShareTest, OneProcessHasAllProcessors) {
  ASSERT_OK_AND_ASSIGN(const HostShare share, HostShare::Find(nullptr));
  EXPECT_EQ(share.ranks(), 1);
  EXPECT_EQ(share.threads(), UsableProcessors());
  EXPECT_EQ(*share.Sum(7), 7);
}

TEST(HostShareTest, RanksOfAMachineShareIt) {
  for (const int size : {2, 3, 5}) {
    EXPECT_OK(ThreadWorld(size).Run([&](Communicator& comm) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const HostShare share, HostShare::Find(&comm));
      EXPECT_EQ(share.ranks(), size);
      EXPECT_EQ(share.threads(), std::max(1, UsableProcessors() / size));
      TESSERA_ASSIGN_OR_RETURN(const int64_t sum, share.Sum(comm.rank() + 1));
      EXPECT_EQ(sum, size * (size + 1) / 2);
      return absl::OkStatus();
    }));
  }
}

TEST(HostShareTest, RanksOfAControlGroupShareItsQuota) {
  const ProcessorQuota one = {.processors = 1, .file = "/proc/self/cgroup"};
  EXPECT_EQ(HostShare::Find(nullptr, one)->threads(), 1);
  const ProcessorQuota half = {.processors = std::max(1, UsableProcessors() / 2), .file = one.file};
  for (const int size : {2, 3}) {
    EXPECT_OK(ThreadWorld(size).Run([&](Communicator& comm) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const HostShare share, HostShare::Find(&comm, half));
      EXPECT_EQ(share.threads(), std::max(1, half.processors / size));
      return absl::OkStatus();
    }));
  }
}

TEST(HostShareTest, RanksWithTheSameDescriptionAreCounted) {
  EXPECT_OK(ThreadWorld(5).Run([&](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const HostShare share, HostShare::Find(&comm));
    const bool odd = comm.rank() % 2 == 1;
    TESSERA_ASSIGN_OR_RETURN(const HostShare::Place place, share.Among(odd ? "odd" : ""));
    EXPECT_EQ(place.index, comm.rank() / 2);
    EXPECT_EQ(place.count, odd ? 2 : 3);
    return absl::OkStatus();
  }));
  EXPECT_EQ(HostShare::Find(nullptr)->Among("alone")->count, 1);
}

using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;

// Rank r needs r + 1 times ten MiB, not all of one kind.
Trainer::Memory MemoryOf(int rank) {
  const int64_t size = (rank + 1) * kMebibyte;
  return {.weights = size, .gradients = 2 * size, .optimizer = 3 * size, .activations = 4 * size};
}

TEST(SpareMemoryTest, OneProcessHasAllThatItLeaves) {
  ASSERT_OK_AND_ASSIGN(const HostShare alone, HostShare::Find(nullptr));
  EXPECT_EQ(*SpareMemory(MemoryOf(0), 100 * kMebibyte, alone), 90 * kMebibyte);
  EXPECT_EQ(*SpareMemory(MemoryOf(0), 10 * kMebibyte, alone), 0);
}

// The memory left after every rank has touched all of its own is shared by all of them.
TEST(SpareMemoryTest, RanksOfAMachineShareWhatAllOfThemLeave) {
  for (const int size : {2, 3, 5}) {
    const int64_t needed = 10 * kMebibyte * size * (size + 1) / 2;
    EXPECT_OK(ThreadWorld(size).Run([&](Communicator& comm) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const HostShare host, HostShare::Find(&comm));
      TESSERA_ASSIGN_OR_RETURN(const int64_t spare,
                               SpareMemory(MemoryOf(comm.rank()), needed + 60 * kMebibyte, host));
      EXPECT_EQ(spare, 60 * kMebibyte / size);
      const absl::Status refused = SpareMemory(MemoryOf(comm.rank()), needed - 1, host).status();
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  HasSubstr(" of memory for the " + std::to_string(size) + " processes here"));
      return absl::OkStatus();
    }));
  }
}

TEST(SpareBesideStagingTest, RanksOfAMachineShareWhatTheirCopiesLeave) {
  EXPECT_OK(ThreadWorld(3).Run([&](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const HostShare host, HostShare::Find(&comm));
    const int64_t mine = (comm.rank() + 1) * kMebibyte;  // 6 MiB in all
    TESSERA_ASSIGN_OR_RETURN(const int64_t spare, SpareBesideStaging(mine, 9 * kMebibyte, host));
    EXPECT_EQ(spare, kMebibyte);
    const absl::Status refused = SpareBesideStaging(mine, 5 * kMebibyte, host).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_EQ(refused.message(),
              "checkpoints need 6.00 MiB of pinned host memory for copies of GPU state for the 3 "
              "processes here, of which 5.00 MiB are available");
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace tessera
