#ifndef TESSERA_COMPUTE_KERNELS_CUDA_WARPGROUP_H_
#define TESSERA_COMPUTE_KERNELS_CUDA_WARPGROUP_H_

// Products of a warpgroup, four warps whose first is a multiple of four, on the tensor cores of
// compute capability 9.0: wgmma of "PTX ISA". bf16 is multiplied, and added in fp32.
//
// A product is asynchronous. The warpgroup calls
//
//   BeginProducts(sums, left)     after it has changed these registers
//   QueueProductBy...()           any number of times
//   FinishProducts(sums, left)    before it uses these registers, or shared memory is overwritten
//
// and between the first and the last neither reads `sums` nor changes `left`. There may be several
// of each. FinishEarlierProducts(sums) waits for all that are queued but the last
// QueueProductBy...(). What threads have copied to shared memory can be multiplied after each of
// them has called PublishCopies(), and then a barrier.
//
// Accumulators of 64 rows are laid out as in mma.h: warp w of the four has rows from 16w on, in
// tiles of 8 columns.

#include <cstdint>

#include "compute/kernels/cuda/mma.h"
#include "compute/kernels/cuda/simt.h"
#include "tensor/bfloat16.h"

#ifndef __CUDACC__
#include "compute/kernels/cuda/testing/simulated_products.h"
#endif

namespace tessera::cuda {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;

// The memory of a SwizzledTile begins at a multiple of this many bytes.
inline constexpr int kSwizzleAlignment = 1024;

// A tile in shared memory of kRows, a multiple of 8, and kColumns, a multiple of 64. It consists of
// panels of 64 columns, one behind the other, with rows of 128 bytes. A row has eight runs of 16
// bytes. Run i is stored as run i ^ row % 8, so that eight rows of a run lie in different banks:
// the "128-byte swizzle".
template <int kRows, int kColumns>
struct SwizzledTile {
  static constexpr int kPanelColumns = 64;
  static constexpr int kElements = kRows * kColumns;
  static constexpr int kPanelBytes = kRows * kPanelColumns * 2;
  static_assert(kRows % 8 == 0 && kColumns % kPanelColumns == 0);

  simt::SharedArray<BFloat16> elements;

  // Returns the place of an element. That of eight rows further is 8 kPanelColumns further.
  static TESSERA_DEVICE int At(int row, int column) {
    return column / kPanelColumns * (kRows * kPanelColumns) + row * kPanelColumns +
           (column / 8 % 8 ^ row % 8) * 8 + column % 8;
  }
};

// Returns the descriptor of a matrix that begins at an address, with the 128-byte swizzle.
// `leading` and `stride` are bytes. With rows of inner indices, `stride` is the distance of eight
// rows from the next, and `leading` is not used; otherwise `stride` is the distance of eight inner
// indices from the next, and `leading` that of 64 columns.
TESSERA_DEVICE uint64_t DescribeMatrix(uint32_t address, int leading, int stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | static_cast<uint64_t>(stride >> 4) << 32 |
         static_cast<uint64_t>(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

#ifdef __CUDACC__

// Makes the copies of the thread visible to products, after a barrier.
TESSERA_DEVICE void PublishCopies() {
  simt::WaitForCopies();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

namespace internal {

// Keeps the compiler from moving uses of registers over this place.
template <int kTiles>
TESSERA_DEVICE void HoldRegisters(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
  }
}
template <int kCount>
TESSERA_DEVICE void HoldRegisters(uint32_t (&left)[kCount][4]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(left[k][i])::"memory");
  }
}

}  // namespace internal

template <typename... Registers>
TESSERA_DEVICE void BeginProducts(Registers&... registers) {
  (internal::HoldRegisters(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Lets what is queued be waited for.
TESSERA_DEVICE void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <typename... Registers>
TESSERA_DEVICE void FinishEarlierProducts(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  (internal::HoldRegisters(registers), ...);
}

template <typename... Registers>
TESSERA_DEVICE void FinishProducts(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  (internal::HoldRegisters(registers), ...);
}

#define TESSERA_TILE(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define TESSERA_TILES(n) \
  TESSERA_TILE(n), TESSERA_TILE(n + 1), TESSERA_TILE(n + 2), TESSERA_TILE(n + 3)
#define TESSERA_TILES_8 TESSERA_TILES(0), TESSERA_TILES(4)
#define TESSERA_TILES_12 TESSERA_TILES_8, TESSERA_TILES(8)
#define TESSERA_TILES_16 TESSERA_TILES_12, TESSERA_TILES(12)
#define TESSERA_NAMES_32                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_NAMES_48 \
  TESSERA_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_NAMES_64 \
  TESSERA_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Queues sums[64, 8 kTiles] (+)= a b^T for 16 inner indices, which rows of both have.
template <int kTiles>
TESSERA_DEVICE void QueueProduct(uint64_t a, uint64_t b, bool accumulates,
                                 float (&sums)[kTiles][4]) {
  static_assert(kTiles == 8 || kTiles == 12);
  if constexpr (kTiles == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_NAMES_32
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : TESSERA_TILES_8
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)));
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %50, 0; "
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" TESSERA_NAMES_48
        "}, %48, %49, p, 1, 1, 0, 0; }"
        : TESSERA_TILES_12
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)));
  }
}

// Queues sums[64, 8 kTiles] += a b for 16 inner indices: `a` has the registers of mma.h, rows of b
// are inner indices.
template <int kTiles>
TESSERA_DEVICE void QueueProduct(const uint32_t (&a)[4], uint64_t b, float (&sums)[kTiles][4]) {
  static_assert(kTiles == 8 || kTiles == 16);
  if constexpr (kTiles == 8) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : TESSERA_TILES_8
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TESSERA_NAMES_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : TESSERA_TILES_16
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

#undef TESSERA_TILE
#undef TESSERA_TILES
#undef TESSERA_TILES_8
#undef TESSERA_TILES_12
#undef TESSERA_TILES_16
#undef TESSERA_NAMES_32
#undef TESSERA_NAMES_48
#undef TESSERA_NAMES_64

#endif

// Queues sums[64, kRows] = left[64, kColumns] right[kRows, kColumns]^T, where `left` are rows of a
// tile from `first` on, a multiple of 8.
template <int kLeftRows, int kRows, int kColumns>
TESSERA_DEVICE void QueueProductByRows(const SwizzledTile<kLeftRows, kColumns>& left, int first,
                                       const SwizzledTile<kRows, kColumns>& right,
                                       float (&sums)[kRows / kTileColumns][4]) {
  using Left = SwizzledTile<kLeftRows, kColumns>;
  using Right = SwizzledTile<kRows, kColumns>;
  constexpr int kStride = 8 * Left::kPanelColumns * 2, kNotUsed = 16;
  const uint64_t a =
      DescribeMatrix(left.elements.Address(first * Left::kPanelColumns), kNotUsed, kStride);
  const uint64_t b = DescribeMatrix(right.elements.Address(0), kNotUsed, kStride);
#pragma unroll
  for (int k = 0; k < kColumns; k += kTileInner) {
    const int panel = k / Left::kPanelColumns, inside = k % Left::kPanelColumns * 2;
    QueueProduct(a + (panel * Left::kPanelBytes + inside) / 16,
                 b + (panel * Right::kPanelBytes + inside) / 16, k > 0, sums);
  }
  CommitProducts();
}

// Queues sums[64, kColumns] += left[64, kRows] right[kRows, kColumns].
template <int kRows, int kColumns>
TESSERA_DEVICE void QueueProductByColumns(const uint32_t (&left)[kRows / kTileInner][4],
                                          const SwizzledTile<kRows, kColumns>& right,
                                          float (&sums)[kColumns / kTileColumns][4]) {
  using Right = SwizzledTile<kRows, kColumns>;
  constexpr int kRowBytes = Right::kPanelColumns * 2;
  const uint64_t b = DescribeMatrix(right.elements.Address(0), Right::kPanelBytes, 8 * kRowBytes);
#pragma unroll
  for (int k = 0; k < kRows; k += kTileInner) {
    QueueProduct(left[k / kTileInner], b + k * kRowBytes / 16, sums);
  }
  CommitProducts();
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_KERNELS_CUDA_WARPGROUP_H_
