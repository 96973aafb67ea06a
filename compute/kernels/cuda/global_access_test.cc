#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compute/kernels/cuda/simt.h"
#include "compute/kernels/cuda/testing/memory_access.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::simt {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kThreads = 64, kBlocks = 3;

// Every thread of a block has an element; `shared_element` belongs to all.
TESSERA_KERNEL void WriteOne(float* x) {
  x[BlockX() * kThreads + ThreadIndex()] = 1;
  if (ThreadIndex() == 7) x[kBlocks * kThreads] = 2;
}

TESSERA_KERNEL void ReadNext(const float* from, float* to) {
  const int64_t i = BlockX() * kThreads + ThreadIndex();
  to[i] = from[(i + 1) % (kBlocks * kThreads)];
}

TESSERA_KERNEL void Count(int32_t* counts, bool reads) {
  AtomicAdd(counts, 1);
  if (reads && ThreadIndex() == 5) counts[1 + BlockX()] = counts[0];
}

// What lanes exchange, and shared memory, are not global.
TESSERA_KERNEL void SumInBlock(const float* x, float* sums) {
  SharedMemory memory;
  const SharedArray<float> parts = memory.Take<float>(kThreads / kWarpSize);
  const float sum = WarpSum(x[ThreadIndex()]);
  if (Lane() == 0) parts.Set(WarpIndex(), sum);
  SyncThreads();
  if (ThreadIndex() == 0) sums[BlockX()] = parts.Get(0) + parts.Get(1);
}

// Each block adds its number to `sums`, one per thread, after the block that has begun before.
enum class Fault { kNone, kNoWait, kOwnOrder, kNoBarrier, kOtherMemory, kOtherKind };

TESSERA_KERNEL void AddInTurn(int32_t* turns, float* sums, Fault fault) {
  SharedMemory memory;
  const SharedArray<int32_t> number = memory.Take<int32_t>(1);
  if (ThreadIndex() == 0) number.Set(0, AtomicAdd(turns + 1, 1));
  SyncThreads();
  const int begun = fault == Fault::kOwnOrder ? static_cast<int>(BlockX()) : number.Get(0);
  if (fault != Fault::kNoWait || ThreadIndex() > 0) AwaitTurn(turns, begun);
  float* const at = sums + ThreadIndex() * 4;
  float pack[4];
  if (fault == Fault::kOtherKind && ThreadIndex() == 3) sums[12] += 1;
  LoadInTurn(turns, at, pack);
  for (float& x : pack) x += static_cast<float>(begun + 1);
  if (fault == Fault::kOtherMemory && begun == 1) {
    AwaitTurn(turns + 2, 0);
    StoreInTurn(turns + 2, pack, at);
  } else {
    StoreInTurn(turns, pack, at);
  }
  if (fault != Fault::kNoBarrier) SyncThreads();
  if (ThreadIndex() == 0) PassTurn(turns);
}

class GlobalAccessTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  GlobalAccessTest() { SetSimulatorOptions({.seed = GetParam()}); }

  std::vector<float> x_ = std::vector<float>(kBlocks * kThreads + 1), y_ = x_;
};

TEST_P(GlobalAccessTest, TwoWritersAreFoundByKernelAndAddress) {
  Launch<WriteOne>({kBlocks}, kThreads, 0, nullptr, x_.data());
  const std::string error = TakeLaunchError();
  EXPECT_THAT(error, HasSubstr("WriteOne: block ("));
  EXPECT_THAT(error, HasSubstr(", thread 7: writes what block "));
  EXPECT_THAT(error,
              HasSubstr(absl::StrCat(" writes (4 bytes of global memory at 0x",
                                     absl::Hex(reinterpret_cast<uintptr_t>(&x_.back())), ")")));
  // Two launches have an order.
  for (int i = 0; i < 3; ++i) Launch<WriteOne>({1}, kThreads, 0, nullptr, x_.data());
  EXPECT_EQ(TakeLaunchError(), "");
}

TEST_P(GlobalAccessTest, AReaderAndAWriterAreFound) {
  Launch<ReadNext>({kBlocks}, kThreads, 0, nullptr, x_.data(), x_.data());
  EXPECT_THAT(TakeLaunchError(), HasSubstr("ReadNext: block ("));
  Launch<ReadNext>({kBlocks}, kThreads, 0, nullptr, x_.data(), y_.data());
  EXPECT_EQ(TakeLaunchError(), "");
}

TEST_P(GlobalAccessTest, AtomicOperationsRaceWithOthersOnly) {
  std::vector<int32_t> counts(1 + kBlocks);
  Launch<Count>({kBlocks}, kThreads, 0, nullptr, counts.data(), false);
  EXPECT_EQ(TakeLaunchError(), "");
  EXPECT_EQ(counts[0], kBlocks * kThreads);
  Launch<Count>({kBlocks}, kThreads, 0, nullptr, counts.data(), true);
  EXPECT_THAT(TakeLaunchError(), HasSubstr("Count: block ("));
}

TEST_P(GlobalAccessTest, SharedMemoryAndLanesAreNotGlobal) {
  Launch<SumInBlock>({kBlocks}, kThreads, kThreads / kWarpSize * 4, nullptr, x_.data(), y_.data());
  EXPECT_EQ(TakeLaunchError(), "");
  EXPECT_GT(TakeCounters().global_accesses, kBlocks * kThreads);
}

TEST_P(GlobalAccessTest, BlocksUseMemoryInTurn) {
  const auto error_of = [&](Fault fault) {
    std::vector<int32_t> turns(3);
    std::vector<float> sums(kThreads * 4);
    Launch<AddInTurn>({kBlocks}, kThreads, 16, nullptr, turns.data(), sums.data(), fault);
    if (fault == Fault::kNone) EXPECT_EQ(sums, std::vector<float>(kThreads * 4, 1 + 2 + 3));
    return TakeLaunchError();
  };
  EXPECT_EQ(error_of(Fault::kNone), "");
  EXPECT_THAT(error_of(Fault::kNoWait), HasSubstr("thread 0: uses memory out of turn"));
  EXPECT_THAT(error_of(Fault::kNoBarrier),
              AnyOf(HasSubstr("out of turn"), HasSubstr("waits for turn")));
  EXPECT_THAT(error_of(Fault::kOtherMemory), HasSubstr("out of turn"));
  EXPECT_THAT(error_of(Fault::kOtherKind), HasSubstr("what block"));
}

TEST(TurnTest, AWaitForALaterBlockIsFound) {
  std::string error;
  for (uint64_t seed = 1; seed <= 20 && error.empty(); ++seed) {
    SetSimulatorOptions({.seed = seed});
    std::vector<int32_t> turns(3);
    std::vector<float> sums(kThreads * 4);
    Launch<AddInTurn>({kBlocks}, kThreads, 16, nullptr, turns.data(), sums.data(),
                      Fault::kOwnOrder);
    error = TakeLaunchError();
  }
  EXPECT_THAT(error, HasSubstr(", which no block before has passed"));
}

INSTANTIATE_TEST_SUITE_P(Orders, GlobalAccessTest, ::testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace tessera::simt
