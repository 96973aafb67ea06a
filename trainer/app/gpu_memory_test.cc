#include <gtest/gtest.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/comm/threads/thread_world.h"
#include "trainer/app/host_share.h"
#include "trainer/app/memory.h"

namespace tessera {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

TEST(SpareBesideStagingTest, RanksOfAMachineShareWhatTheirCopiesLeave) {
  ThreadWorld world(3);
  const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
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
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace tessera
