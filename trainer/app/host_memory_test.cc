#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "compute/comm/communicator.h"
#include "compute/comm/threads/thread_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/app/host_share.h"
#include "trainer/app/memory.h"
#include "trainer/step/trainer.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;

// Rank r needs r + 1 times ten MiB, not all of one kind.
Trainer::Memory MemoryOf(int rank) {
  const int64_t size = (rank + 1) * kMebibyte;
  return {.weights = size, .gradients = 2 * size, .optimizer = 3 * size, .activations = 4 * size};
}

TEST(SpareMemoryTest, OneProcessHasAllThatItLeaves) {
  const absl::StatusOr<HostShare> alone = HostShare::Find(nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(*SpareMemory(MemoryOf(0), 100 * kMebibyte, *alone), 90 * kMebibyte);
  EXPECT_EQ(*SpareMemory(MemoryOf(0), 10 * kMebibyte, *alone), 0);
}

// The memory left after every rank has touched all of its own is shared by all of them.
TEST(SpareMemoryTest, RanksOfAMachineShareWhatAllOfThemLeave) {
  for (const int size : {2, 3, 5}) {
    const int64_t needed = 10 * kMebibyte * size * (size + 1) / 2;
    ThreadWorld world(size);
    const absl::Status status = world.Run([&](Communicator& comm) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const HostShare host, HostShare::Find(&comm));
      TESSERA_ASSIGN_OR_RETURN(const int64_t spare,
                               SpareMemory(MemoryOf(comm.rank()), needed + 60 * kMebibyte, host));
      EXPECT_EQ(spare, 60 * kMebibyte / size);
      const absl::Status refused = SpareMemory(MemoryOf(comm.rank()), needed - 1, host).status();
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  HasSubstr(" of memory for the " + std::to_string(size) + " processes here"));
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace tessera
