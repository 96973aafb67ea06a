#include "layout/elements/strided.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tessera {
namespace {

// A dim with strides in bytes.
using ByteDim = StridedDim;

// Side of the square blocks. Two of them, of 4-byte elements, fit into the innermost cache.
constexpr int64_t kBlock = 64;

// The fixed size lets the compiler turn memcpy into one move.
template <size_t kBytes>
void CopyBlock(const ByteDim& outer, const ByteDim& inner, const std::byte* from, std::byte* to) {
  for (int64_t i = 0; i < outer.extent; ++i) {
    const std::byte* source = from + i * outer.from_stride;
    std::byte* target = to + i * outer.to_stride;
    for (int64_t j = 0; j < inner.extent; ++j) {
      std::memcpy(target, source, kBytes);
      source += inner.from_stride;
      target += inner.to_stride;
    }
  }
}

#if defined(__SSE2__)

// Alternates the elements of two registers, taking those of their lower or of their upper halves.
template <size_t kBytes>
__m128i InterleaveLow(__m128i a, __m128i b) {
  if constexpr (kBytes == 1) return _mm_unpacklo_epi8(a, b);
  if constexpr (kBytes == 2) return _mm_unpacklo_epi16(a, b);
  if constexpr (kBytes == 4) return _mm_unpacklo_epi32(a, b);
  if constexpr (kBytes == 8) return _mm_unpacklo_epi64(a, b);
}
template <size_t kBytes>
__m128i InterleaveHigh(__m128i a, __m128i b) {
  if constexpr (kBytes == 1) return _mm_unpackhi_epi8(a, b);
  if constexpr (kBytes == 2) return _mm_unpackhi_epi16(a, b);
  if constexpr (kBytes == 4) return _mm_unpackhi_epi32(a, b);
  if constexpr (kBytes == 8) return _mm_unpackhi_epi64(a, b);
}

// Transposes a square tile of one register a row. Interleaving row k with row k + half of them,
// for all k, rotates the bits of an element's index by one. After log2(rows) rounds, the bits of
// the row and those of the column have changed places.
template <size_t kBytes>
void TransposeTile(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride) {
  constexpr size_t kRows = sizeof(__m128i) / kBytes;
  std::array<__m128i, kRows> rows, next;
  for (size_t i = 0; i < kRows; ++i) {
    const std::byte* const row = from + static_cast<int64_t>(i) * from_stride;
    rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  }
  for (size_t done = 1; done < kRows; done *= 2) {
    for (size_t k = 0; k < kRows / 2; ++k) {
      next[2 * k] = InterleaveLow<kBytes>(rows[k], rows[k + kRows / 2]);
      next[2 * k + 1] = InterleaveHigh<kBytes>(rows[k], rows[k + kRows / 2]);
    }
    rows = next;
  }
  for (size_t i = 0; i < kRows; ++i) {
    std::byte* const row = to + static_cast<int64_t>(i) * to_stride;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row), rows[i]);
  }
}

// Copies a block whose outer dim is contiguous in `from` and whose inner one is contiguous in `to`.
// Gathers the rows of `from` first, because rows a multiple of a page apart evict each other from
// the cache.
template <size_t kBytes>
void TransposeBlock(const ByteDim& outer, const ByteDim& inner, const std::byte* from,
                    std::byte* to) {
  constexpr int64_t kSide = sizeof(__m128i) / kBytes;
  constexpr int64_t kRowBytes = kBlock * kBytes;
  alignas(64) std::array<std::byte, kBlock * kRowBytes> gathered;
  for (int64_t j = 0; j < inner.extent; ++j) {
    std::memcpy(gathered.data() + j * kRowBytes, from + j * inner.from_stride,
                static_cast<size_t>(outer.extent) * kBytes);
  }
  const int64_t rows = outer.extent / kSide * kSide, columns = inner.extent / kSide * kSide;
  for (int64_t i = 0; i < rows; i += kSide) {
    for (int64_t j = 0; j < columns; j += kSide) {
      TransposeTile<kBytes>(gathered.data() + j * kRowBytes + i * int64_t{kBytes}, kRowBytes,
                            to + i * outer.to_stride + j * int64_t{kBytes}, outer.to_stride);
    }
  }
  const auto copy_rest = [&](int64_t i, int64_t i_end, int64_t j) {
    CopyBlock<kBytes>({i_end - i, kBytes, outer.to_stride}, {inner.extent - j, kRowBytes, kBytes},
                      gathered.data() + j * kRowBytes + i * int64_t{kBytes},
                      to + i * outer.to_stride + j * int64_t{kBytes});
  };
  copy_rest(0, rows, columns);
  copy_rest(rows, outer.extent, 0);
}

#endif

template <size_t kBytes>
void CopyBlocks(const ByteDim& outer, const ByteDim& inner, const std::byte* from, std::byte* to) {
#if defined(__SSE2__)
  const bool transposes = outer.from_stride == kBytes && inner.to_stride == kBytes;
  const auto copy = transposes ? TransposeBlock<kBytes> : CopyBlock<kBytes>;
#else
  const auto copy = CopyBlock<kBytes>;
#endif
  for (int64_t i = 0; i < outer.extent; i += kBlock) {
    const ByteDim rows = {std::min(kBlock, outer.extent - i), outer.from_stride, outer.to_stride};
    for (int64_t j = 0; j < inner.extent; j += kBlock) {
      const ByteDim columns = {std::min(kBlock, inner.extent - j), inner.from_stride,
                               inner.to_stride};
      copy(rows, columns, from + i * outer.from_stride + j * inner.from_stride,
           to + i * outer.to_stride + j * inner.to_stride);
    }
  }
}

template <size_t kBytes>
void CopyDims(std::span<const StridedDim> dims, const std::byte* from, std::byte* to) {
  constexpr int64_t kSize = kBytes;
  if (dims.size() > 2) {
    const StridedDim& outer = dims.front();
    for (int64_t i = 0; i < outer.extent; ++i) {
      CopyDims<kBytes>(dims.subspan(1), from + i * outer.from_stride * kSize,
                       to + i * outer.to_stride * kSize);
    }
    return;
  }
  StridedDim a = {1, 1, 1}, b = {1, 1, 1};
  if (dims.size() == 2) a = dims.front();
  if (!dims.empty()) b = dims.back();
  if (b.from_stride == 1 && b.to_stride == 1) {
    for (int64_t i = 0; i < a.extent; ++i) {
      std::memcpy(to + i * a.to_stride * kSize, from + i * a.from_stride * kSize,
                  static_cast<size_t>(b.extent * kSize));
    }
    return;
  }
  for (StridedDim* dim : {&a, &b}) {
    dim->from_stride *= kSize;
    dim->to_stride *= kSize;
  }
  if (dims.size() == 1) return CopyBlock<kBytes>(a, b, from, to);
  // The rows of a block are written along the dim that is denser in `to`.
  if (a.to_stride < b.to_stride) std::swap(a, b);
  CopyBlocks<kBytes>(a, b, from, to);
}

}  // namespace

std::vector<StridedDim> MergeDims(std::span<const StridedDim> dims) {
  std::vector<StridedDim> merged;
  for (const StridedDim& dim : dims) {
    if (dim.extent == 1) continue;
    if (!merged.empty() && merged.back().from_stride == dim.from_stride * dim.extent &&
        merged.back().to_stride == dim.to_stride * dim.extent) {
      merged.back() = {merged.back().extent * dim.extent, dim.from_stride, dim.to_stride};
    } else {
      merged.push_back(dim);
    }
  }
  return merged;
}

void CopyStrided(std::span<const StridedDim> dims, size_t element_bytes, const std::byte* from,
                 std::byte* to) {
  std::vector<StridedDim> merged;
  if (dims.size() > 1) {
    merged = MergeDims(dims);
    dims = merged;
  }
  switch (element_bytes) {
    case 1:
      return CopyDims<1>(dims, from, to);
    case 2:
      return CopyDims<2>(dims, from, to);
    case 4:
      return CopyDims<4>(dims, from, to);
    default:
      return CopyDims<8>(dims, from, to);
  }
}

}  // namespace tessera
