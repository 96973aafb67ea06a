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

INSTANTIATE_TEST_SUITE_P(Orders, GlobalAccessTest, ::testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace tessera::simt
