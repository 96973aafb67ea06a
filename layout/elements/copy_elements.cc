#include "layout/elements/copy_elements.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

namespace tessera {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16Bits {
  uint16_t bits;
};

// Converts to float, which represents every F16 and BF16 value exactly.
float ToFloat(float value) { return value; }
float ToFloat(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
float ToFloat(F16Bits value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t fraction = value.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

// Rounds to odd: a later rounding to a narrower type then has the same result as a single rounding
// of the double, because float has at least two more bits than F16 and BF16.
float ToFloatForFurtherRounding(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // toward zero
  return std::bit_cast<float>(bits | 1);
}

Bf16 ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded)};
}

F16Bits ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return {static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff))};
  }
  if (magnitude >= 0x47800000) return {static_cast<uint16_t>(sign | 0x7c00)};  // 2^16 and above
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 rounds to the subnormals' grid, 2^-24
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000))};
  }
  // A carry out of the fraction increments the exponent, up to infinity.
  const uint32_t rounded = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  return {static_cast<uint16_t>(sign | rounded)};
}

template <typename To, typename From>
To Convert(From value) {
  if constexpr (std::is_same_v<To, double>) {
    return ToFloat(value);
  } else if constexpr (std::is_same_v<To, float>) {
    if constexpr (std::is_same_v<From, double>) {
      return static_cast<float>(value);
    } else {
      return ToFloat(value);
    }
  } else {
    float single;
    if constexpr (std::is_same_v<From, double>) {
      single = ToFloatForFurtherRounding(value);
    } else {
      single = ToFloat(value);
    }
    if constexpr (std::is_same_v<To, Bf16>) {
      return ToBf16(single);
    } else {
      return ToF16(single);
    }
  }
}

template <typename From, typename To>
void ConvertElements(const std::byte* from, std::byte* to, size_t count, int64_t to_stride) {
  const auto convert = [&](size_t i, int64_t stride) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const To result = Convert<To, From>(value);
    std::memcpy(to + static_cast<int64_t>(i) * stride * static_cast<int64_t>(sizeof(To)), &result,
                sizeof(To));
  };
  if (to_stride == 1) {  // separate: a constant stride is vectorised
    for (size_t i = 0; i < count; ++i) convert(i, 1);
  } else {
    for (size_t i = 0; i < count; ++i) convert(i, to_stride);
  }
}

// `infinity` and `least`, the least magnitude that is rounded to infinity, are bits of the dtype,
// ordered as the magnitudes are. The difference of a smaller and a larger one has the sign bit. So
// a block has an element to look at unless all differences have it.
template <typename Bits, Bits infinity, Bits least>
int64_t FindBeyond(const std::byte* elements, size_t count) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  constexpr size_t kBlockElements = 1024;
  const auto magnitude = [&](size_t i) {
    Bits bits;
    std::memcpy(&bits, elements + i * sizeof(Bits), sizeof(Bits));
    return static_cast<Bits>(bits & ~kSign);
  };
  for (size_t begin = 0; begin < count; begin += kBlockElements) {
    const size_t end = std::min(count, begin + kBlockElements);
    Bits all_smaller = kSign;
    for (size_t i = begin; i < end; ++i) all_smaller &= static_cast<Bits>(magnitude(i) - least);
    if (all_smaller != 0) continue;
    for (size_t i = begin; i < end; ++i) {
      if (magnitude(i) >= least && magnitude(i) < infinity) return static_cast<int64_t>(i);
    }
  }
  return -1;
}

// The largest finite number of each dtype and half a step, which is rounded away from it.
constexpr double kBeyondF32 = 0x1.ffffffp127, kBeyondF16 = 65520, kBeyondBf16 = 0x1.ffp127;

constexpr uint64_t BitsOfF64(double value) { return std::bit_cast<uint64_t>(value); }
constexpr uint32_t BitsOfF32(float value) { return std::bit_cast<uint32_t>(value); }

constexpr uint64_t kInfinityF64 = BitsOfF64(std::numeric_limits<double>::infinity());
constexpr uint32_t kInfinityF32 = BitsOfF32(std::numeric_limits<float>::infinity());
constexpr uint16_t kInfinityBf16 = 0x7f80;
// BF16 has no number between 65280 and 2^16.
constexpr uint16_t kBeyondF16InBf16 = 0x4780;

// A copy of at least this many bytes bypasses the cache.
[[maybe_unused]] constexpr size_t kStreamedBytes = 2048;
[[maybe_unused]] constexpr size_t kLineBytes = 64;

// A load fills more memory than any cache holds. Writing lines without reading them first, and
// without evicting others, makes the copy 1.5 times as fast.
void CopyBytes(const std::byte* from, std::byte* to, size_t bytes) {
#if defined(__SSE2__)
  if (bytes >= kStreamedBytes) {
    const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
    const size_t lines = (bytes - head) / kLineBytes * kLineBytes;
    std::memcpy(to, from, head);
    for (size_t at = head; at < head + lines; at += kLineBytes) {
      __m128i line[kLineBytes / sizeof(__m128i)];
      std::memcpy(line, from + at, kLineBytes);
      auto* const out = reinterpret_cast<__m128i*>(to + at);
      for (size_t i = 0; i < std::size(line); ++i) _mm_stream_si128(out + i, line[i]);
    }
    _mm_sfence();  // orders the streamed stores before later ones
    from += head + lines;
    to += head + lines;
    bytes -= head + lines;
  }
#endif
  std::memcpy(to, from, bytes);
}

template <size_t kBytes>
void CopySame(const std::byte* from, std::byte* to, size_t count, int64_t to_stride) {
  if (to_stride == 1) return CopyBytes(from, to, count * kBytes);
  const StridedDim dim = {static_cast<int64_t>(count), 1, to_stride};
  CopyStrided({&dim, 1}, kBytes, from, to);
}

CopyElements FindSameSize(size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return CopySame<1>;
    case 2:
      return CopySame<2>;
    case 4:
      return CopySame<4>;
    case 8:
      return CopySame<8>;
    default:
      return nullptr;
  }
}

constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

// By the positions of both dtypes in kFloats.
constexpr CopyElements kConversions[4][4] = {
    {nullptr, ConvertElements<double, float>, ConvertElements<double, F16Bits>,
     ConvertElements<double, Bf16>},
    {ConvertElements<float, double>, nullptr, ConvertElements<float, F16Bits>,
     ConvertElements<float, Bf16>},
    {ConvertElements<F16Bits, double>, ConvertElements<F16Bits, float>, nullptr,
     ConvertElements<F16Bits, Bf16>},
    {ConvertElements<Bf16, double>, ConvertElements<Bf16, float>, ConvertElements<Bf16, F16Bits>,
     nullptr},
};

// By the positions of both dtypes in kFloats. The range of F32 includes the ranges of both 16-bit
// dtypes, and the range of BF16 includes that of F16.
constexpr FindOverflow kOverflows[4][4] = {
    {nullptr, FindBeyond<uint64_t, kInfinityF64, BitsOfF64(kBeyondF32)>,
     FindBeyond<uint64_t, kInfinityF64, BitsOfF64(kBeyondF16)>,
     FindBeyond<uint64_t, kInfinityF64, BitsOfF64(kBeyondBf16)>},
    {nullptr, nullptr, FindBeyond<uint32_t, kInfinityF32, BitsOfF32(kBeyondF16)>,
     FindBeyond<uint32_t, kInfinityF32, BitsOfF32(kBeyondBf16)>},
    {nullptr, nullptr, nullptr, nullptr},
    {nullptr, nullptr, FindBeyond<uint16_t, kInfinityBf16, kBeyondF16InBf16>, nullptr},
};

// Returns the entry of such a table; nullptr for dtypes that it does not have.
template <typename Function>
Function FindByDTypes(const Function (&table)[4][4], DType from, DType to) {
  const auto row = std::ranges::find(kFloats, from) - kFloats;
  const auto column = std::ranges::find(kFloats, to) - kFloats;
  return std::max(row, column) < std::ssize(kFloats) ? table[row][column] : nullptr;
}

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

CopyElements FindCopy(DType from, DType to) {
  if (from == to) return FindSameSize(ElementSize(from));
  return FindByDTypes(kConversions, from, to);
}

FindOverflow FindOverflowOf(DType from, DType to) { return FindByDTypes(kOverflows, from, to); }

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
