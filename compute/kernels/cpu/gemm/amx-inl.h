// Products of bf16 by AMX. c is made of tiles of 16 x 16 sums; TDPBF16PS adds the product of 16
// rows and 16 columns over a block of 32 of k, in the order of gemm.h's contract.
//
// The kernel is a template over a unit of eight tiles: Amx is the instructions, AmxModel functions
// that compute what Intel documents for them. Tests run the kernel on the model; a processor's
// instructions are used if they give the model's bits (kernels.cc). Four tiles of c use each tile
// of an operand twice, so that loads take half of the time that products take. All packed tiles are
// 64-byte lines, aligned and one after the other: loads of unaligned ones take more than twice the
// time (Sapphire Rapids).

#if defined(TESSERA_COMPUTE_KERNELS_CPU_GEMM_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COMPUTE_KERNELS_CPU_GEMM_AMX_INL_H_
#undef TESSERA_COMPUTE_KERNELS_CPU_GEMM_AMX_INL_H_
#else
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_AMX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "compute/kernels/cpu/gemm/kernels.h"
#include "compute/kernels/cpu/gemm/pack-inl.h"
#include "tensor/bfloat16.h"

#if HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

// The rows of a tile, and the words of a row.
constexpr int64_t kTile = 16, kTileWords = kTile * kTile;
static_assert(2 * kTile == gemm::kBlock && kTile == kRows && kTile == kGroup &&
              kTileWords == gemm::kPieceWords);

// The AMX instructions. `stride` is the distance of a tile's rows, in words.
struct Amx {
  static void Begin() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const configuration;
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  static void End() { asm volatile("tilerelease"); }

  template <int tile>
  TESSERA_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
  }
  template <int tile>
  TESSERA_INLINE void Load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,4), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
  }
  template <int tile>
  TESSERA_INLINE void Store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,4)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
  }
  // c += a b
  template <int c, int a, int b>
  TESSERA_INLINE void Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

class AmxModel {
 public:
  static void Begin() {}
  static void End() {}
  template <int tile>
  void Zero() {
    std::memset(words_[tile], 0, sizeof(words_[tile]));
  }
  template <int tile>
  void Load(const void* from, int64_t stride) {
    for (int64_t row = 0; row < kTile; ++row) {
      std::memcpy(words_[tile][row], static_cast<const uint32_t*>(from) + row * stride, 4 * kTile);
    }
  }
  template <int tile>
  void Store(void* to, int64_t stride) {
    for (int64_t row = 0; row < kTile; ++row) {
      std::memcpy(static_cast<uint32_t*>(to) + row * stride, words_[tile][row], 4 * kTile);
    }
  }
  // Executes TDPBF16PS, in the words of Intel's manual: multiply-adds of fp32 with DAZ = FTZ = 1,
  // rounded to the nearest, ties to even. Callers set DAZ and FTZ with FlushSubnormals.
  template <int c, int a, int b>
  void Multiply() {
    for (int64_t m = 0; m < kTile; ++m) {
      for (int64_t n = 0; n < kTile; ++n) {
        float even = 0, odd = 0;
        for (int64_t k = 0; k < kTile; ++k) {
          const uint32_t x = words_[a][m][k], y = words_[b][k][n];
          even = std::fma(std::bit_cast<float>(x << 16), std::bit_cast<float>(y << 16), even);
          odd = std::fma(std::bit_cast<float>(x & 0xffff0000), std::bit_cast<float>(y & 0xffff0000),
                         odd);
        }
        uint32_t& word = words_[c][m][n];
        word = std::bit_cast<uint32_t>(std::bit_cast<float>(word) + (even + odd));
      }
    }
  }

 private:
  uint32_t words_[8][kTile][kTile];
};

// Packs rows of a in tiles: for each block of k a tile of sixteen rows, one row's words after the
// other's. `stride` is the number of rows of all tiles.
void PackTiles(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  const Reader<BFloat16> reader(source, depth);
  for (int64_t k = 0; k < depth; k += gemm::kBlock) {
    for (int64_t first = 0; first < stride; first += kTile) {
      for (int64_t row = first; source.k_dense && row < first + kTile; ++row, to += kTile) {
        const auto* const from = static_cast<const BFloat16*>(source.first) + row * source.leading;
        const int64_t count = row < source.width ? std::min(depth - k, gemm::kBlock) : 0;
        const hn::Repartition<uint16_t, WordTag> halves;
        hn::StoreU(hn::MaskedLoad(hn::FirstN(halves, count), halves, &from[k].bits), halves,
                   reinterpret_cast<uint16_t*>(to));
      }
      if (source.k_dense) continue;
      // Words of each k side by side, then turned as a matrix of words whose k is dense.
      uint32_t words[kTile][kTile];
      WordRegister lines[kTile];
      reader.Group(k, first, lines);
      for (int64_t i = 0; i < kTile; ++i) hn::StoreU(lines[i], WordTag(), words[i]);
      Reader<float>({words, kTile, true, kTile, kTile}, kTile).Group(0, 0, lines);
      for (const WordRegister line : lines) hn::StoreU(line, WordTag(), to), to += kTile;
    }
  }
}

// Packs columns of b in tiles: for each block of k a tile of sixteen columns, one step's words
// after the other's.
TESSERA_INLINE void PackColumnTile(const Reader<BFloat16>& reader, int64_t stride, int64_t piece,
                                   uint32_t* to) {
  const int64_t tiles = stride / kTile;
  WordRegister lines[kTile];
  reader.Group(piece / tiles * gemm::kBlock, piece % tiles * kTile, lines);
  for (int64_t i = 0; i < kTile; ++i) {
    hn::StoreU(lines[i], WordTag(), to + piece * kTileWords + i * kTile);
  }
}

void PackColumnTiles(const gemm::Source& source, int64_t depth, int64_t stride, uint32_t* to) {
  const Reader<BFloat16> reader(source, depth);
  const int64_t pieces = (depth + gemm::kBlock - 1) / gemm::kBlock * (stride / kTile);
  for (int64_t piece = 0; piece < pieces; ++piece) PackColumnTile(reader, stride, piece, to);
}

// Multiplies up to two tiles of a by up to two of b, into four tiles of c, which keep both operands
// in use.
template <typename Unit, bool kTwoRows, bool kTwoColumns>
void MultiplyTiles(const gemm::Tile& tile) {
  constexpr int64_t kRows = kTwoRows ? 2 * kTile : kTile,
                    kColumns = kTwoColumns ? 2 * kTile : kTile;
  Unit unit;
  const uint32_t* a = tile.a;
  const uint32_t* b = tile.b;
  gemm::Fetcher fetcher(tile);
  const auto load = [&]<int c>(int64_t row, int64_t column) HWY_ATTR {
    if (tile.from == nullptr) return unit.template Zero<c>();
    unit.template Load<c>(tile.from + row * tile.from_stride + column, tile.from_stride);
  };
  const auto store = [&]<int c>(int64_t row, int64_t column) HWY_ATTR {
    unit.template Store<c>(tile.to + row * tile.to_stride + column, tile.to_stride);
  };
  load.template operator()<0>(0, 0);
  if (kTwoColumns) load.template operator()<1>(0, kTile);
  if (kTwoRows) load.template operator()<2>(kTile, 0);
  if (kTwoRows && kTwoColumns) load.template operator()<3>(kTile, kTile);
  // Pieces of the next columns are packed while the unit works, at even distances.
  const gemm::Packing& packing = tile.packing;
  const Reader<BFloat16> reader(packing.source, packing.depth);
  const int64_t blocks = tile.steps / kTile, pieces = packing.end - packing.piece;
  int64_t piece = packing.piece, due = 0;
  for (int64_t step = 0; step < tile.steps; step += kTile) {
    for (int i = 0; i < kTile / gemm::kStepsOfAhead; ++i) fetcher.Fetch();
    unit.template Load<4>(a, kTile);
    unit.template Load<6>(b, kTile);
    unit.template Multiply<0, 4, 6>();
    if (kTwoColumns) unit.template Load<7>(b + kTileWords, kTile);
    if (kTwoColumns) unit.template Multiply<1, 4, 7>();
    if (kTwoRows) unit.template Load<5>(a + kTileWords, kTile);
    if (kTwoRows) unit.template Multiply<2, 5, 6>();
    if (kTwoRows && kTwoColumns) unit.template Multiply<3, 5, 7>();
    for (due += pieces; due >= blocks; due -= blocks) {
      PackColumnTile(reader, packing.stride, piece++, packing.to);
    }
    a += kRows * kTile;
    b += kColumns * kTile;
  }
  store.template operator()<0>(0, 0);
  if (kTwoColumns) store.template operator()<1>(0, kTile);
  if (kTwoRows) store.template operator()<2>(kTile, 0);
  if (kTwoRows && kTwoColumns) store.template operator()<3>(kTile, kTile);
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET <= HWY_AVX3

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_AMX_INL_H_
