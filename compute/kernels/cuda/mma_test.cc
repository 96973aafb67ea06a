// Products of one warp against plain loops, and the twins of the instructions against the tables of
// fragments in "PTX ISA": "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix".

#include "compute/kernels/cuda/mma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "compute/kernels/cuda/testing/simt_host.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kInner = 48;
constexpr int kColumns = 32;

std::vector<float> SmallIntegers(size_t count, int factor, int modulus) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(static_cast<int>(i) * factor % modulus - modulus / 2);
  }
  return numbers;
}

template <typename T, typename Tile>
Tile LoadedTile(simt::SharedMemory& memory, const float* from, int rows, int columns) {
  const Tile tile = {memory.Take<T>(Tile::kElements)};
  for (int i = simt::ThreadIndex(); i < rows * columns; i += simt::kWarpSize) {
    tile.elements.Set(i / columns * tile.kStride + i % columns, simt::FromFloat<T>(from[i]));
  }
  return tile;
}

template <typename Body>
void ForAccumulators(int tiles, Body body) {
  for (int n = 0; n < tiles; ++n) {
    for (int i = 0; i < 4; ++i)
      body(n, i, TileRow(i) * kColumns + n * kTileColumns + TileColumn(i));
  }
}

// c = c + a[16, kInner] b^T with b [kColumns, kInner]; then d = c e with e [kColumns, kInner].
template <typename T, bool kResident>
TESSERA_KERNEL void Multiply(const float* a, const float* b, const float* e, float* c, float* d) {
  simt::SharedMemory memory;
  using Left = SharedTile<32, kInner, T>;
  using Right = SharedTile<kColumns, kInner, T>;
  const auto left = LoadedTile<T, Left>(memory, a, 32, kInner);
  const auto right = LoadedTile<T, Right>(memory, b, kColumns, kInner);
  const auto next = LoadedTile<T, Right>(memory, e, kColumns, kInner);
  simt::SyncWarp();
  float sums[kColumns / kTileColumns][4], next_sums[kInner / kTileColumns][4] = {};
  ForAccumulators(kColumns / kTileColumns, [&](int n, int i, int at) { sums[n][i] = c[at]; });
  MultiplyByRows(LeftRows<kInner, T, kResident>(left, 16), right, sums);
  ForAccumulators(kColumns / kTileColumns, [&](int n, int i, int at) { c[at] = sums[n][i]; });
  MultiplyByColumns(sums, next, next_sums);
  for (int n = 0; n < kInner / kTileColumns; ++n) {
    for (int i = 0; i < 4; ++i) {
      d[TileRow(i) * kInner + n * kTileColumns + TileColumn(i)] = next_sums[n][i];
    }
  }
}

// Small integers, whose products and sums are exact in both types.
template <typename T, bool kResident>
void ExpectExactProducts() {
  const std::vector<float> a = SmallIntegers(32 * kInner, 7, 3);
  const std::vector<float> b = SmallIntegers(kColumns * kInner, 5, 3);
  const std::vector<float> e = SmallIntegers(kColumns * kInner, 11, 17);
  std::vector<float> c = SmallIntegers(16 * kColumns, 3, 29), expected = c;
  std::vector<float> d(16 * kInner), expected_d(16 * kInner);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      for (int k = 0; k < kInner; ++k) {
        expected[row * kColumns + column] += a[(16 + row) * kInner + k] * b[column * kInner + k];
      }
      for (int k = 0; k < kInner; ++k) {
        expected_d[row * kInner + k] += expected[row * kColumns + column] * e[column * kInner + k];
      }
    }
  }
  simt::Launch<Multiply<T, kResident>>({1}, simt::kWarpSize, 64 * 1024, nullptr, a.data(), b.data(),
                                       e.data(), c.data(), d.data());
  EXPECT_EQ(simt::TakeLaunchError(), "");
  EXPECT_EQ(c, expected);
  EXPECT_EQ(d, expected_d);
}

TEST(MmaTest, Products) {
  ExpectExactProducts<BFloat16, true>();
  ExpectExactProducts<BFloat16, false>();
  ExpectExactProducts<float, true>();
}

// What the documents say of thread `lane` of the warp and element i of its fragment.
struct PtxTable {
  int group_id, thread_in_group;

  explicit PtxTable(int lane) : group_id(lane >> 2), thread_in_group(lane % 4) {}
  int RowOfA(int i) const {
    return (0 <= i && i < 2) || (4 <= i && i < 6) ? group_id : group_id + 8;
  }
  int ColumnOfA(int i) const { return thread_in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0); }
  int RowOfB(int i) const { return thread_in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0); }
  int ColumnOfB(int /*i*/) const { return group_id; }
  int RowOfC(int i) const { return i < 2 ? group_id : group_id + 8; }
  int ColumnOfC(int i) const { return thread_in_group * 2 + (i & 1); }
};

// c[16, 8] += a[16, 16] b[16, 8].
TESSERA_KERNEL void MultiplyFragments(const float* a, const float* b, float* c) {
  const PtxTable table(simt::Lane());
  uint32_t left[4], right[2];
  float sums[4];
  for (int i = 0; i < 8; i += 2) {
    left[i / 2] = simt::BFloat16Pair(a[table.RowOfA(i) * 16 + table.ColumnOfA(i)],
                                     a[table.RowOfA(i + 1) * 16 + table.ColumnOfA(i + 1)]);
  }
  for (int i = 0; i < 4; i += 2) {
    right[i / 2] = simt::BFloat16Pair(b[table.RowOfB(i) * 8 + table.ColumnOfB(i)],
                                      b[table.RowOfB(i + 1) * 8 + table.ColumnOfB(i + 1)]);
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(TileRow(i), table.RowOfC(i));
    EXPECT_EQ(TileColumn(i), table.ColumnOfC(i));
    sums[i] = c[table.RowOfC(i) * 8 + table.ColumnOfC(i)];
  }
  Mma(left, right[0], right[1], sums);
  for (int i = 0; i < 4; ++i) c[table.RowOfC(i) * 8 + table.ColumnOfC(i)] = sums[i];
}

TEST(MmaTest, FragmentsOfAProduct) {
  const std::vector<float> a = SmallIntegers(16 * 16, 7, 61), b = SmallIntegers(16 * 8, 5, 31);
  std::vector<float> c = SmallIntegers(16 * 8, 1, 128), expected = c;
  for (int i = 0; i < 16 * 8 * 16; ++i) {
    const int row = i / 128, column = i / 16 % 8, k = i % 16;
    expected[row * 8 + column] += a[row * 16 + k] * b[k * 8 + column];
  }
  simt::Launch<MultiplyFragments>({1}, simt::kWarpSize, 0, nullptr, a.data(), b.data(), c.data());
  EXPECT_EQ(simt::TakeLaunchError(), "");
  EXPECT_EQ(c, expected);
}

// Row r of matrix j has the bits 100 * (8 * j + r) + column, and lies in shared memory where no
// other order of rows would find it.
template <bool kTransposed>
TESSERA_KERNEL void LoadFragments(bool sync, int shift) {
  simt::SharedMemory memory;
  const auto place = [](int row) { return row * 13 % 32 * 24; };
  const simt::SharedArray<BFloat16> rows = memory.Take<BFloat16>(32 * 24);
  for (int column = 0; column < 8; ++column) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(100 * simt::Lane() + column);
    rows.Set(place(simt::Lane()) + column, value);
  }
  if (sync) simt::SyncWarp();
  uint32_t found[4];
  // Addresses: threads 0-7 those of the first matrix's rows, 8-15 of the second's, and so on.
  LoadMatrices<kTransposed>(rows, place(simt::Lane()) + shift, found);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](int row, int column) -> uint32_t {
      return 100 * (8 * matrix + row) + column;
    };
    // "Row 0: threads 0 to 3, row 1: threads 4 to 7, ...", two adjacent elements each.
    const int row = simt::Lane() / 4, first = 2 * (simt::Lane() % 4);
    const uint32_t low = kTransposed ? element(first, row) : element(row, first);
    const uint32_t high = kTransposed ? element(first + 1, row) : element(row, first + 1);
    EXPECT_EQ(found[matrix], low | high << 16) << "lane " << simt::Lane() << ", matrix " << matrix;
  }
}

TEST(MmaTest, FragmentsOfMatrices) {
  const auto error = [](auto launch, bool sync, int shift) {
    launch(sync, shift);
    return simt::TakeLaunchError();
  };
  const auto plain = [](bool sync, int shift) {
    simt::Launch<LoadFragments<false>>({1}, 32, 4096, nullptr, sync, shift);
  };
  const auto transposed = [](bool sync, int shift) {
    simt::Launch<LoadFragments<true>>({1}, 32, 4096, nullptr, sync, shift);
  };
  EXPECT_EQ(error(plain, true, 0), "");
  EXPECT_EQ(error(transposed, true, 0), "");
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    simt::SetSimulatorOptions({.seed = seed});
    EXPECT_THAT(error(plain, false, 0), HasSubstr("shared memory"));
    EXPECT_THAT(error(plain, true, 4), HasSubstr("not aligned"));
  }
}

}  // namespace
}  // namespace tessera::cuda
