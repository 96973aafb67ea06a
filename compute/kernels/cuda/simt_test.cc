// The simulated device: correct kernels pass in every order, and each kind of mistake is found.

#include "compute/kernels/cuda/simt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compute/kernels/cuda/simt_common.h"
#include "compute/kernels/cuda/testing/memory_access.h"
#include "compute/kernels/cuda/testing/simulated_arithmetic.h"
#include "tensor/bfloat16.h"

namespace tessera::simt {
namespace {

using ::testing::HasSubstr;

constexpr int kThreads = 128;

// sums[block] = the sum of the block's numbers.
TESSERA_KERNEL void TreeSum(const float* numbers, int barriers, float* sums) {
  SharedMemory memory;
  const SharedArray<float> partial = memory.Take<float>(ThreadCount());
  const int thread = ThreadIndex();
  partial.Set(thread, numbers[BlockX() * ThreadCount() + thread]);
  for (int distance = ThreadCount() / 2; distance > 0; distance /= 2) {
    if (barriers-- > 0) SyncThreads();
    if (thread < distance)
      partial.Set(thread, partial.Get(thread) + partial.Get(thread + distance));
  }
  if (thread == 0) sums[BlockX()] = partial.Get(0);
}

TESSERA_KERNEL void WarpSums(const float* numbers, float* sums) {
  sums[ThreadIndex()] = WarpSum(numbers[ThreadIndex()]);
}

TESSERA_KERNEL void Quotients(float divisor, float* quotients) {
  SyncThreads();
  quotients[ThreadIndex()] = 1 / divisor;
}

class SimtTest : public ::testing::Test {
 protected:
  SimtTest() {
    SetSimulatorOptions({});
    TakeCounters();
  }
  ~SimtTest() override { EXPECT_EQ(TakeLaunchError(), ""); }

  // What launches of the kernel find, the same in every order.
  template <auto kKernel, typename... Arguments>
  std::string ErrorOf(int64_t shared_bytes, Arguments... arguments) {
    std::string first;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SetSimulatorOptions({.seed = seed});
      Launch<kKernel>({2}, kThreads, shared_bytes, nullptr, arguments...);
      const std::string error = TakeLaunchError();
      EXPECT_NE(error, "") << "with seed " << seed;
      if (seed == 1) first = error;
    }
    return first;
  }
};

TEST_F(SimtTest, CorrectReductionsPassInEveryOrder) {
  constexpr int kBlocks = 3;
  std::vector<float> numbers(kBlocks * kThreads), sums(kBlocks), lanes(kThreads);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SetSimulatorOptions({.seed = seed});
    Launch<TreeSum>({kBlocks}, kThreads, kThreads * 4, nullptr, numbers.data(), 99, sums.data());
    Launch<WarpSums>({1}, kThreads, 0, nullptr, numbers.data(), lanes.data());
    ASSERT_EQ(TakeLaunchError(), "");
    for (int block = 0; block < kBlocks; ++block) {
      const int first = block * kThreads;
      EXPECT_EQ(sums[block], kThreads * first + kThreads * (kThreads - 1) / 2);
    }
    for (int thread = 0; thread < kThreads; ++thread) {
      const int first = thread / kWarpSize * kWarpSize;
      EXPECT_EQ(lanes[thread], kWarpSize * first + kWarpSize * (kWarpSize - 1) / 2);
    }
  }
  const Counters counters = TakeCounters();
  EXPECT_EQ(counters.launches, 100);
  EXPECT_EQ(counters.blocks, 50 * (kBlocks + 1));
  EXPECT_EQ(counters.threads, 50 * (kBlocks + 1) * kThreads);
  EXPECT_EQ(counters.barriers, 50 * kBlocks * 7);
}

TEST_F(SimtTest, MissingBarrierIsFound) {
  std::vector<float> numbers(2 * kThreads, 1), sums(2);
  for (int barriers = 0; barriers < 7; ++barriers) {
    const std::string error = ErrorOf<TreeSum>(kThreads * 4, numbers.data(), barriers, sums.data());
    // With no barrier at all, what another thread has not written yet may be read, too.
    EXPECT_THAT(error, HasSubstr(barriers == 0 ? "shared memory" : "with no barrier in between"));
    EXPECT_THAT(error, HasSubstr("TreeSum: block "));
    EXPECT_THAT(error, HasSubstr(" of (2,1,1), thread "));
  }
}

TEST_F(SimtTest, DivisorDivides) {
  constexpr int64_t kEnd = int64_t{1} << 31;
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const int64_t chosen =
        std::min<int64_t>(1 + static_cast<int64_t>(random() >> (33 + i % 31)), kEnd - 1);
    const int64_t d = i < 1000 ? i + 1 : i < 1031 ? int64_t{1} << (i - 1000) : chosen;
    const Divisor divisor(d);
    const int64_t multiple = static_cast<int64_t>(random() % kEnd) / d * d;
    for (const int64_t n : {int64_t{0}, multiple, multiple + d - 1, kEnd - 1,
                            static_cast<int64_t>(random() % kEnd)}) {
      if (n >= kEnd) continue;
      ASSERT_EQ(divisor.Quotient(static_cast<uint32_t>(n)), n / d) << n << " / " << d;
      ASSERT_EQ(divisor.Remainder(static_cast<uint32_t>(n)), n % d) << n << " % " << d;
    }
  }
}

TESSERA_KERNEL void SkipsABarrier(int from) {
  if (ThreadIndex() < from) SyncThreads();
}

TESSERA_KERNEL void WaitsElsewhere() {
  if (ThreadIndex() == 70) {
    SyncThreads();
  } else {
    SyncThreads();
  }
}

TEST_F(SimtTest, DivergentBarrierIsFound) {
  const std::string left = ErrorOf<SkipsABarrier>(0, kThreads - 1);
  EXPECT_THAT(left, HasSubstr("SkipsABarrier: block "));
  EXPECT_THAT(left, HasSubstr("divergent barrier: thread 0 waits at the barrier simt_test.cc:"));
  EXPECT_THAT(left, HasSubstr("thread 127 has returned"));
  EXPECT_THAT(ErrorOf<WaitsElsewhere>(0), HasSubstr("divergent barrier: it waits at simt_test.cc"));
  Launch<SkipsABarrier>({2}, kThreads, 0, nullptr, kThreads);
  Launch<SkipsABarrier>({2}, kThreads, 0, nullptr, 0);
}

TESSERA_KERNEL void ShufflesUnder(uint32_t mask, int users) {
  if (Lane() < users) ShuffleXor(mask, Lane(), 1);
}

TESSERA_KERNEL void ShufflesFrom(uint32_t mask, int source) {
  if (Lane() < 16) ShuffleFrom(mask, Lane(), source);
}

TESSERA_KERNEL void ShufflesUnderTwoMasks() {
  ShuffleXor(Lane() < 16 ? 0xffffu : kAllLanes, Lane(), 1);
}

// Numbers that show the order of the operands: lanes 0 to 3 have 02, 13, 20 and 31 after a distance
// of 2.
TESSERA_KERNEL void CombinesLanes(uint32_t mask, int users, int* out) {
  if (Lane() >= users) return;
  out[ThreadIndex()] =
      CombineLanes<2, 1>(mask, Lane() % 4, [](int a, int b) { return a * 10 + b; });
}

TESSERA_KERNEL void ShufflesWhereOthersWait() {
  if (Lane() < 16) {
    ShuffleXor(kAllLanes, Lane(), 1);
  } else {
    SyncThreads();
  }
}

TEST_F(SimtTest, WrongLaneMaskIsFound) {
  EXPECT_THAT(ErrorOf<ShufflesUnder>(0, 0xffff, 32), HasSubstr("does not name the lane"));
  EXPECT_THAT(ErrorOf<ShufflesUnder>(0, kAllLanes, 31), HasSubstr("has returned"));
  EXPECT_THAT(ErrorOf<ShufflesFrom>(0, 0xffff, 16), HasSubstr("which the lane mask does not name"));
  EXPECT_THAT(ErrorOf<ShufflesFrom>(0, 0xffff, 32), HasSubstr("which the lane mask does not name"));
  EXPECT_THAT(ErrorOf<ShufflesUnderTwoMasks>(0), HasSubstr("a shuffle at simt_test.cc"));
  EXPECT_THAT(ErrorOf<ShufflesWhereOthersWait>(0), HasSubstr("waits at the barrier"));
  Launch<ShufflesUnder>({2}, kThreads, 0, nullptr, 0xffff, 16);
  Launch<ShufflesFrom>({2}, kThreads, 0, nullptr, 0xffff, 15);
}

TEST_F(SimtTest, LanesAreCombinedInTheOrderOfTheirDistances) {
  std::vector<int> out(kThreads);
  Launch<CombinesLanes>({1}, kThreads, 0, nullptr, kAllLanes, 32, out.data());
  EXPECT_EQ(TakeLaunchError(), "");
  for (int thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQ(out[thread], std::vector<int>({33, 132, 231, 330})[thread % 4]) << thread;
  }
  const auto error = [&](uint32_t mask, int users) {
    return ErrorOf<CombinesLanes>(0, mask, users, out.data());
  };
  EXPECT_THAT(error(kAllLanes, 31), HasSubstr("has returned"));
  EXPECT_THAT(error(7, 3), HasSubstr("which the lane mask does not name"));
}

// Only the first block writes.
TESSERA_KERNEL void ReadsWhatTheFirstBlockWrote(float* out) {
  SharedMemory memory;
  const SharedArray<float> value = memory.Take<float>(1);
  if (ThreadIndex() != 0) return;
  if (BlockX() == 0) value.Set(0, 1);
  out[BlockX()] = value.Get(0);
}

TEST_F(SimtTest, ReadOfUninitialisedSharedMemoryIsFound) {
  float out[2];
  const std::string error = ErrorOf<ReadsWhatTheFirstBlockWrote>(4, out);
  EXPECT_THAT(error, HasSubstr("block (1,0,0) of (2,1,1), thread 0: reads shared memory that"));
  EXPECT_THAT(error, HasSubstr("(bytes 0 to 4 of shared memory)"));
}

TEST(SharedAccessTest, AThreadThatReadsAgainIsCheckedAgainAfterABarrierOfItsWarp) {
  SharedAccess shared;
  shared.Reset(/*bytes=*/4, /*threads=*/kWarpSize);
  const auto write = [&] { return shared.Check(/*thread=*/1, 0, 4, SharedAccess::Use::kWrite); };
  const auto read = [&] { return shared.Check(/*thread=*/0, 0, 4, SharedAccess::Use::kRead); };
  EXPECT_EQ(write(), nullptr);
  shared.SyncWarp(0);
  EXPECT_EQ(read(), nullptr);
  EXPECT_EQ(read(), nullptr);
  shared.SyncWarp(0);
  EXPECT_EQ(write(), nullptr);
  EXPECT_STREQ(read(), "reads what another thread wrote with no barrier in between");
}

TESSERA_KERNEL void PassesWithinAWarp(bool sync) {
  SharedMemory memory;
  const SharedArray<BFloat16> values = memory.Take<BFloat16>(ThreadCount());
  for (int round = 0; round < 3; ++round) {
    values.Set(ThreadIndex(), BFloat16(1.0f));
    if (sync) SyncWarp();
    ToFloat(values.Get(ThreadIndex() ^ 1));
    if (sync) SyncWarp();
  }
}

// Reads before another thread of the warp writes.
TESSERA_KERNEL void WritesWhatOthersRead(bool sync) {
  SharedMemory memory;
  const SharedArray<float> value = memory.Take<float>(1);
  if (ThreadIndex() == 0) value.Set(0, 1);
  SyncThreads();
  if (Lane() != 0) value.Get(0);
  if (sync) SyncThreads();
  if (ThreadIndex() == 0) value.Set(0, 2);
}

TEST_F(SimtTest, RacesWithinAWarpAndAgainstReadersAreFound) {
  Launch<PassesWithinAWarp>({2}, kThreads, kThreads * 2, nullptr, true);
  EXPECT_EQ(TakeLaunchError(), "");
  EXPECT_THAT(ErrorOf<PassesWithinAWarp>(kThreads * 2, false), HasSubstr("shared memory"));
  Launch<WritesWhatOthersRead>({2}, kThreads, 4, nullptr, true);
  EXPECT_EQ(TakeLaunchError(), "");
  EXPECT_THAT(ErrorOf<WritesWhatOthersRead>(4, false), HasSubstr("no barrier in between"));
}

TESSERA_KERNEL void TakesShared(int count, int at) {
  SharedMemory memory;
  memory.Take<float>(3);  // arrays start at multiples of 16 bytes
  const SharedArray<float> second = memory.Take<float>(count);
  if (ThreadIndex() == 0) second.Slice(2, count - 2).Set(at - 2, 1);
}

TEST_F(SimtTest, BoundsOfSharedMemory) {
  Launch<TakesShared>({1}, kThreads, 32, nullptr, 4, 3);
  EXPECT_EQ(TakeLaunchError(), "");
  EXPECT_THAT(ErrorOf<TakesShared>(32, 4, 4), HasSubstr("element 2 of an array of 2"));
  EXPECT_THAT(ErrorOf<TakesShared>(32, 5, 0), HasSubstr("takes 36 bytes of shared memory"));
}

TESSERA_KERNEL void LoadsPack(const BFloat16* from, float* to) {
  float values[4];
  LoadPack(from, values);
  StorePack(values, to + 4 * ThreadIndex());
}

TEST_F(SimtTest, PacksMustBeAligned) {
  alignas(16) BFloat16 from[8];
  for (int i = 0; i < 8; ++i) from[i] = BFloat16(static_cast<float>(i));
  alignas(16) float to[4 * kThreads];
  Launch<LoadsPack>({1}, kThreads, 0, nullptr, from + 4, to);
  EXPECT_EQ(to[3], 7);
  EXPECT_THAT((ErrorOf<LoadsPack>(0, from + 2, to)), HasSubstr("not aligned"));
  EXPECT_THAT((ErrorOf<LoadsPack>(0, from, to + 2)), HasSubstr("not aligned"));
}

// Each thread copies a pack, and reads its neighbour's, twice from the same place.
enum class Fault {
  kNone,
  kNoWait,
  kNoBarrier,
  kNoBarrierBefore,
  kNoWaitAtTheEnd,
  kTouches,
  kReadsAgain
};
TESSERA_KERNEL void CopiesPacks(const float* from, float* to, Fault fault) {
  SharedMemory memory;
  const SharedArray<float> packs = memory.Take<float>(4 * ThreadCount());
  const int mine = 4 * ThreadIndex(), next = 4 * (ThreadIndex() ^ 1);
  for (int round = 0; round < 2; ++round) {
    if (fault == Fault::kReadsAgain) {
      packs.Set(mine, 1);
      to[mine] = packs.Get(mine);
    }
    packs.CopyPackAsync(mine, from + mine, round == 0 || mine % 8 == 0);
    if (fault == Fault::kTouches) packs.Set(mine, 1);
    if (fault == Fault::kReadsAgain) to[mine] = packs.Get(mine);
    if (fault != Fault::kNoWait) WaitForCopies();
    if (fault != Fault::kNoBarrier) SyncThreads();
    float pack[4];
    packs.GetPack(next, pack);
    for (int i = 0; i < 4; ++i) to[round * 4 * kThreads + next + i] = pack[i];
    if (fault != Fault::kNoBarrierBefore) SyncThreads();
  }
  if (fault == Fault::kNoWaitAtTheEnd) packs.CopyPackAsync(mine, from + mine, true);
}

TEST_F(SimtTest, CopiesArriveWhenTheyAreWaitedFor) {
  alignas(16) float from[4 * kThreads + 4], to[8 * kThreads];
  for (int i = 0; i < 4 * kThreads; ++i) from[i] = static_cast<float>(i);
  constexpr int64_t kBytes = 16 * kThreads;
  Launch<CopiesPacks>({2}, kThreads, kBytes, nullptr, from, to, Fault::kNone);
  EXPECT_EQ(TakeLaunchError(), "");
  for (int i = 0; i < 4 * kThreads; ++i) {
    EXPECT_EQ(to[i], from[i]);
    EXPECT_EQ(to[4 * kThreads + i], i / 4 % 2 == 0 ? from[i] : 0);
  }
  const auto error = [&](Fault fault) { return ErrorOf<CopiesPacks>(kBytes, from, to, fault); };
  EXPECT_THAT(error(Fault::kNoWait), HasSubstr("uses what is being copied, with no wait"));
  EXPECT_THAT(error(Fault::kTouches), HasSubstr("uses what is being copied, with no wait"));
  EXPECT_THAT(error(Fault::kReadsAgain), HasSubstr("uses what is being copied, with no wait"));
  EXPECT_THAT(error(Fault::kNoBarrier), HasSubstr("shared memory"));
  EXPECT_THAT(error(Fault::kNoBarrierBefore), HasSubstr("in between"));
  EXPECT_THAT(error(Fault::kNoWaitAtTheEnd), HasSubstr("has not waited for its copies"));
  // The next block knows nothing of copies on their way when an error ended the last one.
  Launch<CopiesPacks>({2}, kThreads, kBytes, nullptr, from, to, Fault::kNone);
  EXPECT_EQ(TakeLaunchError(), "");
  EXPECT_THAT(ErrorOf<CopiesPacks>(kBytes, from + 1, to, Fault::kNone), HasSubstr("not aligned"));
}

TESSERA_KERNEL void NotesOrder(int32_t* next, int32_t* order) {
  order[AtomicAdd(next, 1)] = static_cast<int32_t>(BlockX() * ThreadCount() + ThreadIndex());
}

TEST_F(SimtTest, SeedsRepeatTheOrder) {
  std::set<std::vector<int32_t>> orders;
  for (uint64_t seed : {1, 2, 3, 1, 2, 3}) {
    SetSimulatorOptions({.seed = seed});
    int32_t next = 0;
    std::vector<int32_t> order(4 * kThreads);
    Launch<NotesOrder>({4}, kThreads, 0, nullptr, &next, order.data());
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (int32_t i = 0; i < 4 * kThreads; ++i) ASSERT_EQ(order[i], i);
  }
  EXPECT_EQ(orders.size(), 3);
}

TESSERA_KERNEL void NotesBlock(std::set<int64_t>* blocks) {
  if (ThreadIndex() == 0) blocks->insert(BlockX() + 1000 * (BlockY() + 1000 * BlockZ()));
}

TEST_F(SimtTest, GridsAndSamplesOfThem) {
  std::set<int64_t> blocks;
  Launch<NotesBlock>({3, 2, 2}, kWarpSize, 0, nullptr, &blocks);
  EXPECT_EQ(blocks, (std::set<int64_t>{0, 1, 2, 1000, 1001, 1002, 1000000, 1000001, 1000002,
                                       1001000, 1001001, 1001002}));
  blocks.clear();
  Launch<NotesBlock>({3, 0, 2}, kWarpSize, 0, nullptr, &blocks);
  EXPECT_TRUE(blocks.empty());
  SetSimulatorOptions({.sampled_blocks = 10});
  Launch<NotesBlock>({int64_t{1} << 30, 1, 1}, kWarpSize, 0, nullptr, &blocks);
  EXPECT_TRUE(blocks.size() > 8 && blocks.size() <= 10) << blocks.size();
  EXPECT_EQ(*blocks.begin(), 0);
  EXPECT_EQ(*blocks.rbegin(), (int64_t{1} << 30) - 1);
}

TEST_F(SimtTest, TheDeviceRoundsInItsWayAndItsCallerAsBefore) {
  volatile float three = 3;  // for a quotient that is computed here
  const float nearest = 1 / three;
  std::vector<float> quotients(kThreads);
  SetSimulatedArithmetic(Arithmetic::kRoundsTowardZero);
  Launch<Quotients>({1}, kThreads, 0, nullptr, three, quotients.data());
  SetSimulatedArithmetic(Arithmetic::kIeee);
  EXPECT_EQ(fegetround(), FE_TONEAREST);
  EXPECT_EQ(1 / three, nearest);
  for (const float quotient : quotients) ASSERT_EQ(quotient, std::nextafter(nearest, 0.0f));
}

TEST_F(SimtTest, LaunchesBeyondTheDeviceAreRefused) {
  const auto error = [](Grid grid, int threads, int64_t shared_bytes) {
    Launch<SkipsABarrier>(grid, threads, shared_bytes, nullptr, 0);
    return TakeLaunchError();
  };
  EXPECT_EQ(error({int64_t{1} << 31}, 32, 0),
            "SkipsABarrier: launched with a grid of (2147483648,1,1)");
  EXPECT_EQ(error({1, 65536}, 32, 0), "SkipsABarrier: launched with a grid of (1,65536,1)");
  EXPECT_EQ(error({1}, 33, 0), "SkipsABarrier: launched with blocks of 33 threads");
  EXPECT_EQ(error({1}, 1056, 0), "SkipsABarrier: launched with blocks of 1056 threads");
  EXPECT_EQ(error({1}, 32, 300000), "SkipsABarrier: launched with 300000 bytes of shared memory");
  EXPECT_EQ(error({1}, 1024, 227 * 1024), "");
}

TEST_F(SimtTest, AfterAnErrorNothingRunsUntilItIsTaken) {
  std::set<int64_t> blocks;
  Launch<SkipsABarrier>({1}, 32, 0, nullptr, 1);
  Launch<NotesBlock>({1}, 32, 0, nullptr, &blocks);
  EXPECT_TRUE(blocks.empty());
  EXPECT_THAT(TakeLaunchError(), HasSubstr("SkipsABarrier"));
  Launch<NotesBlock>({1}, 32, 0, nullptr, &blocks);
  EXPECT_EQ(blocks.size(), 1);
}

TEST_F(SimtTest, StreamsRunLaunchesLater) {
  class Later : public WorkQueue {
   public:
    void Add(std::function<void()> work) override { all.push_back(std::move(work)); }
    std::vector<std::function<void()>> all;
  } later;
  std::set<int64_t> blocks;
  Launch<NotesBlock>({2}, 32, 0, &later, &blocks);
  EXPECT_TRUE(blocks.empty());
  ASSERT_EQ(later.all.size(), 1);
  later.all[0]();
  EXPECT_EQ(blocks.size(), 2);
}

TEST_F(SimtTest, NamesOfKernels) {
  EXPECT_EQ(ShortKernelName(PrettyKernelName<TreeSum>()), "TreeSum");
  EXPECT_EQ(
      ShortKernelName("void F() [with auto kKernel = a::_GLOBAL__N_1::Each<4, b::Add<float> >]"),
      "Each<4, Add<float> >");
}

#ifdef TESSERA_SIMT_ASAN_TEST
TESSERA_KERNEL void WritesBehind(float* out, int64_t count) {
  if (ThreadIndex() <= count) out[ThreadIndex()] = 1;
}

TEST_F(SimtTest, AddressSanitizerFindsAccessesOutsideGlobalMemory) {
  std::vector<float> out(100);
  Launch<WritesBehind>({1}, kThreads, 0, nullptr, out.data(), 99);
  EXPECT_DEATH(Launch<WritesBehind>({1}, kThreads, 0, nullptr, out.data(), 100),
               "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace tessera::simt
