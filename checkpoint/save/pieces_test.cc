// The order of pieces and the memory for them, apart from the threads.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "checkpoint/plan/plan.pb.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/save/memory_index.h"
#include "checkpoint/save/piece_queues.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::ckpt {
namespace {

using ::testing::ElementsAre;

TEST(CopyOrderTest, WantedPiecesComeFirst) {
  std::set<size_t> pending = {0, 1, 2, 3, 4};
  const auto is_pending = [&](size_t piece) { return pending.contains(piece); };
  CopyOrder order;
  order.set_count(5);
  order.Want(3);
  order.Want(1);
  order.Want(3);
  std::vector<size_t> copied;
  while (!pending.empty()) {
    const std::optional<size_t> wanted = order.Wanted(is_pending);
    const std::optional<size_t> next = wanted ? wanted : order.Next(is_pending);
    copied.push_back(next.value());
    pending.erase(*next);
  }
  EXPECT_FALSE(order.Wanted(is_pending) || order.Next(is_pending));
  EXPECT_THAT(copied, ElementsAre(3, 1, 0, 2, 4));
}

TEST(CopyOrderTest, EndsMeet) {
  std::set<size_t> pending = {0, 1, 2, 3, 4};
  const auto is_pending = [&](size_t piece) { return pending.contains(piece); };
  CopyOrder order;
  order.set_count(5);
  std::vector<size_t> copied;
  while (!pending.empty()) {
    for (const auto& piece : {order.Last(is_pending), order.Next(is_pending)}) {
      if (piece && pending.erase(*piece) > 0) copied.push_back(*piece);
    }
  }
  EXPECT_FALSE(order.Last(is_pending) || order.Next(is_pending));
  EXPECT_THAT(copied, ElementsAre(4, 0, 3, 1, 2));
}

// Pieces are as large as the storage's unit of writing, as far as memory and chunks allow.
TEST(StagingLayoutTest, PiecesAreWhatTheStorageWritesBest) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  RankPlan plan;
  plan.add_files()->set_size_bytes(100 * kMiB);
  DataWriterOptions options = {.save = {.staging_bytes = 64 * kMiB}};
  EXPECT_EQ(LayOutStaging(plan, options, 64 * kMiB).piece_bytes, 4 * kMiB);
  options.traits.preferred_write_bytes = 8 * kMiB;
  EXPECT_EQ(LayOutStaging(plan, options, 64 * kMiB).piece_bytes, 8 * kMiB);
  EXPECT_EQ(LayOutStaging(plan, options, 64 * kMiB).pieces, 13);
  EXPECT_EQ(NeededStaging(plan, options).wanted_bytes, 32 * kMiB);
  EXPECT_EQ(LayOutStaging(plan, options, 16 * kMiB).piece_bytes, 4 * kMiB);
}

TEST(StagingBuffersTest, PresentOnesComeFirstThenNewOnesInOrder) {
  std::array<std::byte, 35> memory;
  StagingBuffers buffers(memory, /*stride_bytes=*/10, /*present=*/1);
  EXPECT_EQ(buffers.touched_bytes(), 10);
  EXPECT_EQ(buffers.count(), 3);
  EXPECT_EQ(buffers.Take(), memory.data());
  EXPECT_FALSE(buffers.has_present());
  EXPECT_EQ(buffers.Take(), memory.data() + 10);
  buffers.Return(memory.data());
  EXPECT_EQ(buffers.Take(), memory.data());
  EXPECT_EQ(buffers.Take(), memory.data() + 20);
  EXPECT_FALSE(buffers.has_any());
  EXPECT_EQ(buffers.touched_bytes(), 30);
}

TEST(UpdateOrderTest, TheSamePartsOfAllBuffersAreSideBySide) {
  std::vector<std::byte> memory(8 << 20);
  const auto range = [&](size_t first, size_t last, size_t piece) {
    return MemoryIndex::Range{memory.data() + first, memory.data() + last, piece};
  };
  // Two buffers, the first of them behind the other, of two tensors with a gap, and of one. The
  // third piece begins with the end of the first buffer; the last has no memory.
  const std::vector<MemoryIndex::Range> ranges = {
      range(4 << 20, 4'800'000, 0),   range(4'800'100, 5'000'000, 0),
      range(5'000'000, 5'900'000, 1), range(5'900'000, 6'000'000, 2),
      range(0, 700'000, 2),           range(700'000, 1'500'000, 3)};
  EXPECT_THAT(UpdateOrder(ranges, 5), ElementsAre(0, 2, 4, 1, 3));
}

TEST(MemoryIndexTest, FindsWhatALookAtEveryRangeFinds) {
  std::mt19937 random(7);
  std::array<std::byte, 200> memory;
  std::vector<MemoryIndex::Range> ranges;
  for (int i = 0; i < 40; ++i) {
    const size_t first = random() % 190, bytes = 1 + random() % (i % 10 == 0 ? 150 : 10);
    ranges.push_back({memory.data() + first,
                      memory.data() + std::min<size_t>(first + bytes, memory.size()),
                      random() % 15});
  }
  const MemoryIndex index(ranges);
  for (size_t first = 0; first < memory.size(); ++first) {
    for (const size_t bytes : {1, 7, 60}) {
      const std::byte* const begin = memory.data() + first;
      std::set<size_t> expected;
      for (const MemoryIndex::Range& range : ranges) {
        if (range.first < begin + bytes && begin < range.last) expected.insert(range.piece);
      }
      const std::vector<size_t> found = index.PiecesIn(begin, bytes);
      EXPECT_EQ(found, std::vector<size_t>(expected.begin(), expected.end()));
    }
  }
}

}  // namespace
}  // namespace tessera::ckpt
