#ifndef TESSERA_COMPUTE_KERNELS_CPU_GEMM_KERNELS_H_
#define TESSERA_COMPUTE_KERNELS_CPU_GEMM_KERNELS_H_

// The code that is compiled once for each instruction set, for the driver (gemm.cc): packing,
// micro-kernels, and the last step of a product. Private to the package.
//
// A panel is a few rows of a, or columns of b, for a part of k. A panel is packed step by step: a
// step has the elements of all rows, in words of four bytes, in the order in which the chains take
// them. A step is one index of k, and its words are fp32 numbers; for bf16 with the processor's own
// instructions it is two indices (pairs). A panel of a for AMX is made of tiles (amx-inl.h).

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstdint>

#include "layout/dtype.h"
#include "tensor/bfloat16.h"

namespace tessera::gemm {

// The indices of k in a block of exact bf16 products (see gemm.h).
inline constexpr int64_t kBlock = 32;

// Makes an x86-64 processor treat subnormals as zeros during its lifetime, or, without `flush`, as
// the numbers that they are. Other processors have no such mode with the same bits (ARM's flushes
// what is subnormal before it is rounded): there, the loops of the contract flush by themselves
// (registers-inl.h).
class FlushSubnormals {
 public:
  explicit FlushSubnormals(bool flush = true) : before_(Mode()) {
    constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x40;
    constexpr unsigned kBoth = kFlushResults | kFlushOperands;
    SetMode(flush ? before_ | kBoth : before_ & ~kBoth);
  }
  ~FlushSubnormals() { SetMode(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)
  static unsigned Mode() { return _mm_getcsr(); }
  static void SetMode(unsigned mode) { _mm_setcsr(mode); }
#else
  static unsigned Mode() { return 0; }
  static void SetMode(unsigned /*mode*/) {}
#endif

 private:
  const unsigned before_;
};

// A matrix as the packing sees it: `width` counts rows of a or columns of b.
struct Source {
  const void* first;  // the element of the panel's first row and first k
  int64_t leading;    // from one row to the next, or where rows lie side by side, from one k
  bool k_dense;       // elements along k lie side by side
  int64_t width;      // of the panel
  int64_t available;  // rows of the matrix from the panel's first on
};

// Packs k in [0, depth). `stride`, at least `width`, is the distance of the panel's steps in words.
// With stride < lanes, up to kSlack words past the panel's end are overwritten.
using PackFunction = void (*)(const Source& source, int64_t depth, int64_t stride, uint32_t* to);
inline constexpr int64_t kSlack = 16;

// Pieces [piece, end) of a panel of columns, of kPieceWords words each, to pack while a tile is
// multiplied. Without any, all is zero.
struct Packing {
  Source source;
  int64_t depth, stride;
  uint32_t* to;
  int64_t piece, end;
};
inline constexpr int64_t kPieceWords = 256;

// A tile to compute: to[rows, columns] = `from`, or zeros if it is null, plus the products of the
// steps of two panels.
struct Tile {
  int64_t steps;
  const uint32_t* a;
  const uint32_t* b;
  int64_t b_stride;   // from one step of b to the next, where columns may be used as they lie
  const float* from;  // or null
  int64_t from_stride;
  float* to;
  int64_t to_stride;
  // Memory that is needed soon: every kStepsOfAhead steps, a line at an offset in bytes is fetched
  // into the second-level cache.
  const void* ahead;
  const int64_t* ahead_offsets;
  // Rows of the sums that the next tile continues or writes, or of c, to which this one is added.
  // Every kStepsOfAhead steps, one row is fetched into the first-level cache; fetching all at once
  // would stall.
  const float* next = nullptr;
  int64_t next_rows = 0, next_stride = 0;
  Packing packing;  // where kernels do that meanwhile
};
using MultiplyFunction = void (*)(const Tile& tile);
inline constexpr int64_t kStepsOfAhead = 4;

// Fetches the memory that a tile names for later.
class Fetcher {
 public:
  explicit Fetcher(const Tile& tile)
      : ahead_(static_cast<const char*>(tile.ahead)),
        offsets_(tile.ahead_offsets),
        next_(tile.next),
        rows_(tile.next_rows),
        stride_(tile.next_stride) {}

  // Called after every kStepsOfAhead steps.
  [[gnu::always_inline]] void Fetch() {
    __builtin_prefetch(ahead_ + *offsets_++, 0, 2);
    if (rows_ == 0) return;
    --rows_;
    __builtin_prefetch(next_, 1);
    __builtin_prefetch(next_ + kLine, 1);
    next_ += stride_;
  }

 private:
  static constexpr int64_t kLine = 16;  // of a cache, in words

  const char* const ahead_;
  const int64_t* offsets_;
  const float* next_;
  int64_t rows_;
  const int64_t stride_;
};

// Writes to[rows, columns] = tile (+ bias) in the output's dtype, from a tile of fp32 of a panel's
// width. `bias` has the input's dtype, or is null.
using FinishFunction = void (*)(const float* tile, int64_t tile_stride, int64_t rows,
                                int64_t columns, const void* bias, void* to, int64_t to_stride);

// Tiles to add, of a panel's width: to[rows, columns] = levels of a tree + (... + (its last level +
// tile)).
struct LevelSum {
  const float* tile;
  const float* last_level;
  int64_t level_words;  // from the level before to the next
  int levels;
  int64_t stride;
  int64_t rows, columns;
  float* to;
  int64_t to_stride;
};
using AddFunction = void (*)(const LevelSum& sum);

inline constexpr int kMostHeights = 15;
inline constexpr int64_t kMostRows = 32;

struct Kernels {
  int64_t rows, columns;  // of the largest tile
  int64_t height;         // a tile has a multiple of so many rows; its last ones may be none of c's
  int64_t block;          // k is filled up to a multiple of it
  int64_t k_per_step;     // 1, or 2 for pairs
  PackFunction pack_rows, pack_columns;
  // The most steps of a part of k. With more, a panel of columns would leave the caches before its
  // next use; with fewer, sums would be moved more often.
  int64_t most_steps = 384;
  // The steps of a part with which all rows are multiplied before the next steps follow; 0: all.
  int64_t stage_steps = 0;
  bool packs_meanwhile = false;  // the next panel of columns, while tiles are multiplied
  bool takes_columns;            // that lie side by side as they are: packing would not change them
  FinishFunction finish[2];      // into fp32, into bf16
  AddFunction add;
  // By rows / height - 1, and by the width of b's panel: half or all of `columns`.
  MultiplyFunction multiply[kMostHeights][2];
  // Before the first product of a call and after its last one, or null.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// AVX-512's instructions for pairs of bf16: none, or slower or faster than multiply-adds of fp32.
enum class PairSpeed { kNone, kSlow, kFast };

// Returns the kernels for this processor. `exact`: by the contract. Otherwise bf16 has one chain in
// fp32, unless the contract is as fast, and a multiply-add rounds as often as the processor's
// instructions for it do.
const Kernels& KernelsFor(DType input, bool exact);

// Returns the kernels of AMX for bf16, by the contract; null without AVX-512. `modeled`: on
// functions that compute what Intel documents, otherwise on the instructions, which the processor
// must have.
const Kernels* AmxKernels(bool modeled);
// Returns whether two sets of kernels give the same bits, for numbers of all sizes. KernelsFor()
// uses AMX only if its instructions and the model do.
bool SameBits(const Kernels& x, const Kernels& y);

}  // namespace tessera::gemm

#endif  // TESSERA_COMPUTE_KERNELS_CPU_GEMM_KERNELS_H_
