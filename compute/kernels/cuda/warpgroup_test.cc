// Products of warpgroups against plain loops, the twins of the instructions against the tables and
// layouts of "PTX ISA", and what the simulated device reports of their misuse.

#include "compute/kernels/cuda/warpgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "compute/kernels/cuda/testing/simt_host.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;

std::vector<float> SmallIntegers(size_t count, int factor, int modulus) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(static_cast<int>(i) * factor % modulus - modulus / 2);
  }
  return numbers;
}

template <typename Tile>
Tile LoadedTile(simt::SharedMemory& memory, const float* from, int rows, int columns) {
  const Tile tile = {memory.Take<BFloat16>(Tile::kElements)};
  for (int i = simt::ThreadIndex(); i < rows * columns; i += simt::ThreadCount()) {
    tile.elements.Set(tile.At(i / columns, i % columns), simt::FromFloat<BFloat16>(from[i]));
  }
  return tile;
}

// c[64 G, R] = a b^T with a[64 G, C] and b[R, C], and d[64 G, C] = d + c b, by G warpgroups.
template <int kRows, int kColumns>
TESSERA_KERNEL void Multiply(const float* a, const float* b, float* c, float* d) {
  simt::SharedMemory memory;
  memory.AlignTo(kSwizzleAlignment);
  const auto left = LoadedTile<SwizzledTile<128, kColumns>>(memory, a, 128, kColumns);
  const auto right = LoadedTile<SwizzledTile<kRows, kColumns>>(memory, b, kRows, kColumns);
  PublishCopies();
  simt::SyncThreads();
  const int first = simt::WarpIndex() / 4 * kWarpgroupRows;
  const int warp_row = simt::WarpIndex() * kTileRows;
  float sums[kRows / kTileColumns][4], next[kColumns / kTileColumns][4];
  BeginProducts(sums);
  QueueProductByRows(left, first, right, sums);
  FinishProducts(sums);
  uint32_t weights[kRows / kTileInner][4];
  for (int n = 0; n < kRows / kTileColumns; ++n) {
    for (int i = 0; i < 4; ++i) {
      c[(warp_row + TileRow(i)) * kRows + n * kTileColumns + TileColumn(i)] = sums[n][i];
      weights[n / 2][n % 2 * 2 + i / 2] = PairOf(sums[n], i / 2);
    }
  }
  for (int n = 0; n < kColumns / kTileColumns; ++n) {
    for (int i = 0; i < 4; ++i) {
      next[n][i] = d[(warp_row + TileRow(i)) * kColumns + n * kTileColumns + TileColumn(i)];
    }
  }
  BeginProducts(next, weights);
  QueueProductByColumns(weights, right, next);
  FinishProducts(next, weights);
  for (int n = 0; n < kColumns / kTileColumns; ++n) {
    for (int i = 0; i < 4; ++i) {
      d[(warp_row + TileRow(i)) * kColumns + n * kTileColumns + TileColumn(i)] = next[n][i];
    }
  }
}

// Small integers, whose products and sums are exact.
template <int kRows, int kColumns>
void ExpectExactProducts() {
  const std::vector<float> a = SmallIntegers(128 * kColumns, 7, 3);
  const std::vector<float> b = SmallIntegers(kRows * kColumns, 5, 3);
  std::vector<float> c(128 * kRows), expected_c = c;
  std::vector<float> d = SmallIntegers(128 * kColumns, 3, 29), expected_d = d;
  for (int row = 0; row < 128; ++row) {
    for (int n = 0; n < kRows; ++n) {
      float& sum = expected_c[row * kRows + n];
      for (int k = 0; k < kColumns; ++k) sum += a[row * kColumns + k] * b[n * kColumns + k];
      for (int k = 0; k < kColumns; ++k) {
        expected_d[row * kColumns + k] += sum * b[n * kColumns + k];
      }
    }
  }
  simt::Launch<Multiply<kRows, kColumns>>({1}, 256, 100 << 10, nullptr, a.data(), b.data(),
                                          c.data(), d.data());
  EXPECT_EQ(simt::TakeLaunchError(), "");
  EXPECT_EQ(c, expected_c);
  EXPECT_EQ(d, expected_d);
}

TEST(WarpgroupTest, Products) {
  ExpectExactProducts<96, 64>();
  ExpectExactProducts<64, 128>();
  ExpectExactProducts<64, 64>();
}

// A layout of "PTX ISA", "Canonical Layouts": a shape of modes and their strides, in elements, the
// first two or three for the outer index, then for the inner one.
struct Mode {
  int64_t size, stride;
};
int64_t PlaceOf(const std::vector<Mode>& modes, int64_t index) {
  int64_t place = 0;
  for (const Mode& mode : modes) {
    place += index % mode.size * mode.stride;
    index /= mode.size;
  }
  return place;
}
// Swizzle<bits, 4, 3> of a byte's address.
int64_t Swizzled(int64_t address, int bits) {
  return address ^ (address >> 7 & ((1 << bits) - 1)) << 4;
}

struct Layout {
  uint64_t mode;  // of the descriptor
  int bits;       // of the swizzle
  bool rows_are_inner;
  int64_t leading, stride;         // in elements
  std::vector<Mode> outer, inner;  // with T = 8

  int64_t At(int64_t from, int64_t o, int64_t k) const {
    return Swizzled(from + 2 * (PlaceOf(outer, o) + PlaceOf(inner, k)), bits);
  }
  uint64_t Descriptor(int64_t from) const {
    return static_cast<uint64_t>(from) >> 4 | static_cast<uint64_t>(2 * leading) >> 4 << 16 |
           static_cast<uint64_t>(2 * stride) >> 4 << 32 | mode << 62;
  }
};

std::vector<Layout> Layouts(int64_t count) {
  const int64_t m = count / 8;
  return {
      // K-major: without a swizzle, and with swizzles of 32, 64 and 128 bytes.
      {0, 0, false, 1224, 72, {{8, 8}, {m, 72}}, {{8, 1}, {2, 1224}}},
      {3, 1, false, 8, 256, {{8, 16}, {m, 256}}, {{8, 1}, {2, 8}}},
      {2, 2, false, 8, 512, {{8, 32}, {m, 512}}, {{8, 1}, {2, 8}}},
      {1, 3, false, 8, 1024, {{8, 64}, {m, 1024}}, {{8, 1}, {2, 8}}},
      // MN-major.
      {0, 0, true, 1224, 72, {{8, 1}, {m, 72}}, {{8, 8}, {2, 1224}}},
      {3, 1, true, 256, 128, {{8, 1}, {2, 8}, {m / 2, 256}}, {{8, 16}, {2, 128}}},
      {2, 2, true, 512, 256, {{8, 1}, {4, 8}, {m / 4, 512}}, {{8, 32}, {2, 256}}},
      {1, 3, true, 1024, 512, {{8, 1}, {8, 8}, {m / 8, 1024}}, {{8, 64}, {2, 512}}},
  };
}

constexpr int kColumnsOfLayouts = 128;

// sums[64, 32] = a[64, 16] b[32, 16]^T; row and column by the table of the accumulator's fragments.
TESSERA_KERNEL void MultiplyLayouts(const Layout* left, const Layout* right, const float* a,
                                    const float* b, float* c) {
  simt::SharedMemory memory;
  memory.AlignTo(kSwizzleAlignment);
  constexpr int kBytes = 40 << 10;
  const auto left_bytes = memory.Take<BFloat16>(kBytes / 2);
  const auto right_bytes = memory.Take<BFloat16>(kBytes / 2);
  const auto fill = [](const simt::SharedArray<BFloat16>& to, const Layout& layout, int count,
                       const float* from) {
    const int64_t start = to.Address(0);
    for (int i = simt::ThreadIndex(); i < count * 16; i += simt::ThreadCount()) {
      to.Set(static_cast<int>((layout.At(start, i / 16, i % 16) - start) / 2),
             simt::FromFloat<BFloat16>(from[i]));
    }
  };
  fill(left_bytes, *left, 64, a);
  fill(right_bytes, *right, kColumnsOfLayouts, b);
  PublishCopies();
  simt::SyncThreads();
  float sums[kColumnsOfLayouts / 8][4];
  simt::FenceRegisters({{&sums, sizeof(sums)}}, simt::Site::Here());
  simt::QueueProduct({.sums = &sums[0][0],
                      .columns = kColumnsOfLayouts,
                      .accumulates = false,
                      .left_matrix = left->Descriptor(left_bytes.Address(0)),
                      .right_matrix = right->Descriptor(right_bytes.Address(0)),
                      .right_rows_are_inner = right->rows_are_inner,
                      .site = simt::Site::Here()});
  CommitProducts();
  FinishProducts(sums);
  const int warp = simt::ThreadIndex() / 32, lane = simt::ThreadIndex() % 32;
  for (int i = 0; i < kColumnsOfLayouts / 2; ++i) {
    const int row = 16 * warp + (lane >> 2) + 8 * (i >> 1 & 1);
    const int column = 8 * (i >> 2) + (lane % 4) * 2 + (i & 1);
    c[row * kColumnsOfLayouts + column] = sums[i / 4][i % 4];
  }
}

TEST(WarpgroupTest, CanonicalLayouts) {
  const std::vector<float> a = SmallIntegers(64 * 16, 7, 61);
  const std::vector<float> b = SmallIntegers(kColumnsOfLayouts * 16, 5, 31);
  std::vector<float> expected(64 * kColumnsOfLayouts);
  for (int i = 0; i < 64 * kColumnsOfLayouts * 16; ++i) {
    const int row = i / 16 / kColumnsOfLayouts, column = i / 16 % kColumnsOfLayouts, k = i % 16;
    expected[row * kColumnsOfLayouts + column] += a[row * 16 + k] * b[column * 16 + k];
  }
  for (const Layout& left : Layouts(64)) {
    if (left.rows_are_inner) continue;
    for (const Layout& right : Layouts(kColumnsOfLayouts)) {
      SCOPED_TRACE(left.mode * 10 + right.mode + (right.rows_are_inner ? 100 : 0));
      std::vector<float> c(64 * kColumnsOfLayouts);
      simt::Launch<MultiplyLayouts>({1}, 128, 90 << 10, nullptr, &left, &right, a.data(), b.data(),
                                    c.data());
      EXPECT_EQ(simt::TakeLaunchError(), "");
      EXPECT_EQ(c, expected);
    }
  }
}

enum class Misuse {
  kNone,
  kNoProxyFence,
  kProxyFenceAfterBarrier,
  kNoBarrier,
  kNoRegisterFence,
  kSumsChangeAfterFence,
  kLeftChangesAfterFence,
  kSumsAreRead,
  kSumsAreWritten,
  kLeftIsWritten,
  kMemoryIsWritten,
  kMemoryIsCopiedTo,
  kMemoryIsWrittenAfterOtherWarpsWait,
  kNoWait,
  kNoCommit,
  kLastIsRead,
  kWarpsDiffer,
  kWarpsLeave,
  kNotAligned,
  kBaseOffset,
  kUndefinedBits,
  kBeyondMemory,
  kNotLoaded,
};

TESSERA_KERNEL void Misused(Misuse misuse, const BFloat16* global, float* c) {
  simt::SharedMemory memory;
  memory.AlignTo(kSwizzleAlignment);
  if (misuse == Misuse::kNotAligned) memory.Take<BFloat16>(kSwizzleAlignment / 4);
  using Tile = SwizzledTile<64, 64>;
  const Tile tile = {memory.Take<BFloat16>(Tile::kElements)};
  for (int i = simt::ThreadIndex(); i < Tile::kElements; i += simt::ThreadCount()) {
    if (misuse != Misuse::kNotLoaded || i != 77) {
      tile.elements.Set(i, simt::FromFloat<BFloat16>(1.0f));
    }
  }
  if (misuse == Misuse::kNoProxyFence || misuse == Misuse::kProxyFenceAfterBarrier) {
    simt::WaitForCopies();
  } else {
    PublishCopies();
  }
  if (misuse != Misuse::kNoBarrier) simt::SyncThreads();
  if (misuse == Misuse::kProxyFenceAfterBarrier) PublishCopies();

  float sums[8][4] = {};
  uint32_t left[4][4] = {};
  if (misuse != Misuse::kNoRegisterFence) BeginProducts(sums, left);
  if (misuse == Misuse::kSumsChangeAfterFence) sums[3][1] = 5;
  if (misuse == Misuse::kLeftChangesAfterFence) left[0][1] = 5;
  if (misuse == Misuse::kWarpsLeave && simt::WarpIndex() == 2) return;
  uint64_t bits = 0;
  if (misuse == Misuse::kBaseOffset) bits = uint64_t{1} << 49;
  if (misuse == Misuse::kUndefinedBits) bits = uint64_t{1} << 55;
  if (misuse == Misuse::kBeyondMemory) bits = (64 << 10) / 16;
  if (misuse == Misuse::kWarpsDiffer && simt::WarpIndex() == 3) bits = 2;
  const uint64_t matrix = DescribeMatrix(tile.elements.Address(0), 16, 1024);
  QueueProduct(matrix, matrix + bits, true, sums);
  QueueProduct(left[0], matrix, sums);
  if (misuse == Misuse::kSumsAreRead) c[1] = sums[2][0];
  if (misuse == Misuse::kSumsAreWritten) sums[7][3] = 1;
  if (misuse == Misuse::kLeftIsWritten) left[0][3] = 1;
  if (misuse == Misuse::kMemoryIsWritten && simt::ThreadIndex() == 0) {
    tile.elements.Set(9, simt::FromFloat<BFloat16>(2.0f));
  }
  if (misuse == Misuse::kMemoryIsCopiedTo) {
    tile.elements.CopyPackAsync(simt::ThreadIndex() * 8, global, true);
  }
  if (misuse == Misuse::kNoWait) return;
  if (misuse != Misuse::kNoCommit) CommitProducts();
  if (misuse == Misuse::kLastIsRead) {
    FinishEarlierProducts(sums);
    c[1] = sums[2][0];
  }
  FinishProducts(sums, left);
  if (misuse == Misuse::kMemoryIsWrittenAfterOtherWarpsWait && simt::ThreadIndex() == 0) {
    tile.elements.Set(9, simt::FromFloat<BFloat16>(2.0f));
  }
  c[0] = sums[2][0];
}

TEST(WarpgroupTest, MisuseIsReported) {
  std::vector<float> c(2);
  const auto error = [&](Misuse misuse, uint64_t seed) {
    simt::SetSimulatorOptions({.seed = seed});
    const BFloat16 global[8] = {};
    simt::Launch<Misused>({1}, 128, 10 << 10, nullptr, misuse, global, c.data());
    return simt::TakeLaunchError();
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(error(Misuse::kNone, seed), "");
    EXPECT_EQ(c[0], 16);
    EXPECT_EQ(error(Misuse::kSumsAreRead, seed), "");
    EXPECT_TRUE(std::isnan(c[1]));
    c[1] = 0;
    EXPECT_EQ(error(Misuse::kLastIsRead, seed), "");
    EXPECT_TRUE(std::isnan(c[1]));
    const auto reports = [&](Misuse misuse, const char* text) {
      EXPECT_THAT(error(misuse, seed), HasSubstr(text)) << static_cast<int>(misuse);
    };
    reports(Misuse::kNoProxyFence, "written with no fence.proxy.async and barrier in between");
    reports(Misuse::kProxyFenceAfterBarrier, "written with no fence.proxy.async and barrier");
    reports(Misuse::kNoBarrier, "no barrier in between");
    reports(Misuse::kNoRegisterFence, "sums have changed since wgmma.fence");
    reports(Misuse::kSumsChangeAfterFence, "sums have changed since wgmma.fence");
    reports(Misuse::kLeftChangesAfterFence, "registers have changed since wgmma.fence");
    reports(Misuse::kSumsAreWritten, "registers of a product have changed before the wait");
    reports(Misuse::kLeftIsWritten, "registers of a product have changed before the wait");
    reports(Misuse::kMemoryIsWritten, "in between");
    reports(Misuse::kMemoryIsCopiedTo, "in between");
    reports(Misuse::kMemoryIsWrittenAfterOtherWarpsWait, "in between");
    reports(Misuse::kNoWait, "returns and has not waited for its products");
    reports(Misuse::kNoCommit, "returns and has not waited for its products");
    reports(Misuse::kWarpsDiffer, "the warps of a warpgroup queue other products");
    reports(Misuse::kWarpsLeave, "the warps of a warpgroup have queued other products");
    reports(Misuse::kNotAligned, "a descriptor begins within its swizzle");
    reports(Misuse::kBaseOffset, "a descriptor has a base offset");
    reports(Misuse::kUndefinedBits, "a descriptor has bits that are not defined");
    reports(Misuse::kBeyondMemory, "a descriptor leads beyond shared memory");
    reports(Misuse::kNotLoaded, "reads shared memory that nothing has written");
  }
}

}  // namespace
}  // namespace tessera::cuda
