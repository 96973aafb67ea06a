#include "trainer/app/host_share.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/comm/threads/thread_world.h"

namespace tessera {
namespace {

int Processors() {
  cpu_set_t processors;
  return sched_getaffinity(0, sizeof(processors), &processors) == 0 ? CPU_COUNT(&processors) : 1;
}

TEST(HostShareTest, OneProcessHasAllProcessors) {
  const absl::StatusOr<HostShare> share = HostShare::Find(nullptr);
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->ranks(), 1);
  EXPECT_EQ(share->threads(), Processors());
  EXPECT_EQ(*share->Sum(7), 7);
}

TEST(HostShareTest, RanksOfAMachineShareIt) {
  for (const int size : {2, 3, 5}) {
    ThreadWorld world(size);
    const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const HostShare share, HostShare::Find(&comm));
      EXPECT_EQ(share.ranks(), size);
      EXPECT_EQ(share.threads(), std::max(1, Processors() / size));
      TESSERA_ASSIGN_OR_RETURN(const int64_t sum, share.Sum(comm.rank() + 1));
      EXPECT_EQ(sum, size * (size + 1) / 2);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(HostShareTest, RanksWithTheSameDescriptionAreCounted) {
  ThreadWorld world(5);
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const HostShare share, HostShare::Find(&comm));
    const bool odd = comm.rank() % 2 == 1;
    TESSERA_ASSIGN_OR_RETURN(const HostShare::Place place, share.Among(odd ? "odd" : ""));
    EXPECT_EQ(place.index, comm.rank() / 2);
    EXPECT_EQ(place.count, odd ? 2 : 3);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(HostShare::Find(nullptr)->Among("alone")->count, 1);
}

}  // namespace
}  // namespace tessera
