// Processes of a host share memory where the system gives it, and load without it elsewhere.

#include "checkpoint/load/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/testing.h"
#include "checkpoint/plan/plan.pb.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

TEST(HostMemoryTest, HasWholePagesAndAMarkOfItsOwn) {
  ASSERT_OK_AND_ASSIGN(HostMemory least, HostMemory::Create(HostMemory::kMarkBytes));
  EXPECT_EQ(least.size_bytes(), 4096);
  ASSERT_OK_AND_ASSIGN(HostMemory more, HostMemory::Create(4097));
  EXPECT_EQ(more.size_bytes(), 8192);
  const std::optional<HostMemory> first = std::move(least), second = std::move(more);
  EXPECT_EQ(least.data(), nullptr) << "moved";  // NOLINT(bugprone-use-after-move)
  const MemoryOffer offer = HostMemory::OfferOf(first);
  EXPECT_EQ(offer.size_bytes(), 4096);
  EXPECT_EQ(offer.mark().size(), HostMemory::kMarkBytes);
  EXPECT_NE(offer.mark(), HostMemory::OfferOf(second).mark());
  const MemoryOffer none = HostMemory::OfferOf(std::nullopt);
  EXPECT_EQ(none.host(), offer.host());
  EXPECT_EQ(none.size_bytes(), 0);
  // Large memory has whole huge pages, if the system has some that processes can share.
  const absl::StatusOr<HostMemory> large = HostMemory::Create((9 << 20) + 1);
  if (large.ok()) EXPECT_EQ(large->size_bytes(), 10 << 20);
}

TEST(HostMemoryTest, IsRefusedWhereItIsForbiddenOrHasNoSize) {
  for (const uint64_t bytes :
       {uint64_t{0}, HostMemory::kMarkBytes - 1, uint64_t{SIZE_MAX} / 2 + 1}) {
    EXPECT_TRUE(absl::IsUnimplemented(HostMemory::Create(bytes).status())) << bytes;
  }
  AllowHostMemory(false);
  EXPECT_TRUE(absl::IsUnimplemented(HostMemory::Create(4096).status()));
  AllowHostMemory(true);
  EXPECT_OK(HostMemory::Create(4096));
}

TEST(HostMemoryTest, EndsNoProcessThatMayWriteSmallFilesOnly) {
  const auto create = [] {
    const rlimit limit = {4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || !HostMemory::Create(4096).ok()) _exit(1);
    _exit(absl::IsUnimplemented(HostMemory::Create(8192).status()) ? 0 : 2);
  };
  EXPECT_EXIT(create(), testing::ExitedWithCode(0), "");
}

TEST(HostMemoryTest, IsNoStandardStream) {
  const auto create = [] {
    close(STDERR_FILENO);
    const auto memory = HostMemory::Create(4096);
    _exit(memory.ok() && write(STDERR_FILENO, "a message", 9) < 0 ? 0 : 1);
  };
  EXPECT_EXIT(create(), testing::ExitedWithCode(0), "");
}

TEST(HostMemoryTest, OffersAreMappedWhereTheyAreNeededAndSeen) {
  ASSERT_OK_AND_ASSIGN(HostMemory owned, HostMemory::Create(4096));
  const std::optional<HostMemory> memory = std::move(owned);
  MemoryOffers offers;
  for (const uint32_t rank : {3, 5, 7}) {
    MemoryOffer& offer = *offers.add_offers() = HostMemory::OfferOf(memory);
    offer.set_rank(rank);
  }
  offers.mutable_offers(2)->set_mark("too short");
  ASSERT_OK_AND_ASSIGN(const auto mapped, MapOffers(offers.SerializeAsString(),
                                                    [](uint32_t rank) { return rank != 3; }));
  ASSERT_EQ(mapped.size(), 1);
  EXPECT_EQ(mapped.begin()->first, 5);
  EXPECT_EQ(mapped.at(5).size_bytes(), 4096);
  EXPECT_FALSE(MapOffers("garbage", [](uint32_t) { return true; }).ok());
}

TEST(HostMemoryTest, TheOwnerOfMappedMemoryIsARank) {
  RankSet owners;
  owners.add_rank(1);
  const std::string mapped = owners.SerializeAsString();
  ASSERT_OK_AND_ASSIGN(const auto mappers, WhoMapped({mapped, mapped}));
  EXPECT_EQ(mappers[0], "");
  EXPECT_TRUE(absl::IsInternal(WhoMapped({mapped}).status()));
}

}  // namespace
}  // namespace tessera::ckpt
