// For each part of k all rows of a are packed, in panels of the height of a register tile. Then one
// block of columns of b after the other is packed, in panels of a register tile's width, and
// multiplied by all rows: a panel of a stays in the first-level cache while the block of b passes,
// which stays in the second-level cache. What the parts of k leave in c, or in scratch where c is
// not fp32, is where the next part goes on.

#include "compute/kernels/cpu/gemm/gemm.h"

#include <glog/logging.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compute/kernels/cpu/gemm/kernels.h"
#include "compute/tensor/bfloat16.h"
#include "layout/dtype.h"

namespace tessera {
namespace {

using gemm::kBlock;
using gemm::kMostRows;
using gemm::kSlack;

constexpr int64_t kLine = 16;  // words of a cache line
constexpr int64_t kMostColumns = 32;

int64_t RoundUp(int64_t x, int64_t quantum) { return (x + quantum - 1) / quantum * quantum; }

// Near-equal parts of at most `most`, each but the last a multiple of `quantum`.
int64_t PartOf(int64_t extent, int64_t most, int64_t quantum) {
  const int64_t parts = (extent + most - 1) / most;
  return RoundUp((extent + parts - 1) / parts, quantum);
}

struct Caches {
  int64_t first, second;  // bytes of a core's
};

const Caches& CachesHere() {
  static const Caches caches = [] {
    // Where the system does not say, small ones.
    const auto size = [](int name, int64_t least, int64_t most) {
      return std::clamp<int64_t>(sysconf(name), least, most);
    };
    return Caches{size(_SC_LEVEL1_DCACHE_SIZE, 32 << 10, 128 << 10),
                  size(_SC_LEVEL2_CACHE_SIZE, 256 << 10, 2 << 20)};
  }();
  return caches;
}

// Subnormals are zeros while it lives.
class FlushSubnormals {
 public:
  explicit FlushSubnormals(bool flush) : before_(_mm_getcsr()) {
    constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x40;
    if (flush) _mm_setcsr(before_ | kFlushResults | kFlushOperands);
  }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  const unsigned before_;
};

}  // namespace

// A part of k.
struct ChainGemm::Part {
  int64_t first = 0, depth = 0;
  bool is_first = false, is_last = false;
};

struct ChainGemm::Buffers {
  float* sums;  // [m, n] if sums are apart
  float* tile;
};

ChainGemm::ChainGemm(const GemmShape& shape, bool fused)
    : shape_(shape), kernels_(gemm::KernelsFor(shape.input, fused)) {
  CHECK(!shape.b_packed && shape.m > 0 && shape.n > 0 && shape.k > 0);
  const bool blocks = shape.input == DType::kBF16;
  const int64_t step_bytes = 4, quantum = blocks ? kBlock : 8;
  // A panel of a takes half of the first-level cache, a block of b half of the second-level one.
  const int64_t most_steps =
      std::clamp<int64_t>(CachesHere().first / 2 / (kernels_.rows * step_bytes), 128, 512);
  const int64_t most_depth = most_steps * kernels_.k_per_step / quantum * quantum;
  depth_ = std::min(shape.k, PartOf(shape.k, most_depth, quantum));
  const int64_t steps = Steps(depth_);
  const int64_t most_columns = std::max(kernels_.columns, CachesHere().second / 2 / (steps * 4) /
                                                              kernels_.columns * kernels_.columns);
  columns_ = PartOf(shape.n, most_columns, kernels_.columns);
  row_panels_ = (shape.m + kernels_.rows - 1) / kernels_.rows;
  sums_apart_ = shape.output != DType::kF32 && depth_ < shape.k;
  scratch_words_ = RoundUp(shape.m * steps + kSlack, kLine) +
                   RoundUp(RoundUp(columns_, kernels_.columns) * steps + kSlack, kLine) +
                   (sums_apart_ ? RoundUp(shape.m * shape.n, kLine) : 0) + kMostRows * kMostColumns;
}

int64_t ChainGemm::Steps(int64_t depth) const {
  return shape_.input == DType::kF32 ? depth : RoundUp(depth, kBlock) / kernels_.k_per_step;
}

void ChainGemm::Run(const void* a, const void* b, void* c, const void* bias, void* scratch) const {
  const FlushSubnormals flush(shape_.input == DType::kBF16);
  RunParts(a, b, c, bias, scratch);
}

void ChainGemm::RunParts(const void* a, const void* b, void* c, const void* bias,
                         void* scratch) const {
  uint32_t* const packed_a = static_cast<uint32_t*>(scratch);
  uint32_t* const packed_b = packed_a + RoundUp(shape_.m * Steps(depth_) + kSlack, kLine);
  float* const after = reinterpret_cast<float*>(
      packed_b + RoundUp(RoundUp(columns_, kernels_.columns) * Steps(depth_) + kSlack, kLine));
  const Buffers buffers = {.sums = after + kMostRows * kMostColumns, .tile = after};
  for (int64_t k = 0; k < shape_.k; k += depth_) {
    const Part part = {k, std::min(depth_, shape_.k - k), k == 0, k + depth_ >= shape_.k};
    const int64_t steps = Steps(part.depth);
    PackRows(a, part, packed_a);
    for (int64_t first = 0; first < shape_.n; first += columns_) {
      const int64_t columns = std::min(columns_, shape_.n - first);
      PackColumns(b, part, first, columns, packed_b);
      for (int64_t panel = 0; panel < row_panels_; ++panel) {
        const int64_t row = FirstRow(panel), rows = FirstRow(panel + 1) - row;
        for (int64_t column = 0; column < columns; column += kernels_.columns) {
          MultiplyTile(part, row, rows, first + column, packed_a + row * steps,
                       packed_b + column * steps, c, bias, buffers);
        }
      }
    }
  }
}

void ChainGemm::PackRows(const void* a, const Part& part, uint32_t* packed) const {
  const int64_t size = ElementSize(shape_.input);
  const int64_t steps = Steps(part.depth);
  for (int64_t panel = 0; panel < row_panels_; ++panel) {
    const int64_t row = FirstRow(panel), rows = FirstRow(panel + 1) - row;
    const int64_t at =
        shape_.a_transposed ? part.first * shape_.lda + row : row * shape_.lda + part.first;
    kernels_.pack({.first = static_cast<const char*>(a) + at * size,
                   .leading = shape_.lda,
                   .k_dense = !shape_.a_transposed,
                   .width = rows,
                   .available = shape_.m - row},
                  part.depth, rows, packed + row * steps);
  }
}

void ChainGemm::PackColumns(const void* b, const Part& part, int64_t column, int64_t columns,
                            uint32_t* packed) const {
  const int64_t size = ElementSize(shape_.input);
  const int64_t steps = Steps(part.depth), half = kernels_.columns / 2;
  for (int64_t i = 0; i < columns; i += kernels_.columns) {
    const int64_t first = column + i, width = std::min(kernels_.columns, columns - i);
    const int64_t at =
        shape_.b_transposed ? first * shape_.ldb + part.first : part.first * shape_.ldb + first;
    kernels_.pack({.first = static_cast<const char*>(b) + at * size,
                   .leading = shape_.ldb,
                   .k_dense = shape_.b_transposed,
                   .width = width,
                   .available = shape_.n - first},
                  part.depth, width <= half ? half : kernels_.columns, packed + i * steps);
  }
}

void ChainGemm::MultiplyTile(const Part& part, int64_t row, int64_t rows, int64_t column,
                             const uint32_t* a, const uint32_t* b, void* c, const void* bias,
                             const Buffers& buffers) const {
  const int64_t columns = std::min(kernels_.columns, shape_.n - column);
  const int64_t wide = columns > kernels_.columns / 2 ? 1 : 0;
  const int64_t width = wide == 1 ? kernels_.columns : kernels_.columns / 2;
  const gemm::MultiplyFunction multiply = kernels_.multiply[rows - 1][wide];
  const bool fp32 = shape_.output == DType::kF32;
  void* const result =
      static_cast<char*>(c) + (row * shape_.ldc + column) * ElementSize(shape_.output);
  // Where the chains of this part are left, and those of the one before were.
  float* const sums = sums_apart_ ? buffers.sums + row * shape_.n + column
                      : fp32      ? static_cast<float*>(result)
                                  : nullptr;
  const int64_t stride = sums_apart_ ? shape_.n : shape_.ldc;
  const bool from_c = part.is_first && shape_.accumulate;
  const bool finish = part.is_last && (bias != nullptr || !fp32);
  if (columns == width && !finish && !(from_c && !fp32)) {
    for (int64_t i = 0; i < rows; ++i) {  // where the next tile begins
      __builtin_prefetch(sums + i * stride + width, 1);
      __builtin_prefetch(sums + i * stride + width + kLine, 1);
    }
    return multiply(part.depth, a, b, part.is_first && !from_c ? nullptr : sums, stride, sums,
                    stride);
  }
  float* const tile = buffers.tile;
  if (from_c && !fp32) {
    const auto* const from = static_cast<const BFloat16*>(result);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        tile[i * width + j] = static_cast<float>(from[i * shape_.ldc + j]);
      }
    }
  } else if (from_c || !part.is_first) {
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(tile + i * width, sums + i * stride, columns * sizeof(float));
    }
  }
  multiply(part.depth, a, b, part.is_first && !from_c ? nullptr : tile, width, tile, width);
  if (part.is_last) {
    const char* const added = static_cast<const char*>(bias);
    return gemm::FinishTile(tile, width, rows, columns, shape_.input,
                            added == nullptr ? nullptr : added + column * ElementSize(shape_.input),
                            shape_.output, result, shape_.ldc);
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(sums + i * stride, tile + i * width, columns * sizeof(float));
  }
}

}  // namespace tessera
