#include "layout/elements/copy_elements.h"

#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "layout/elements/strided.h"

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

}  // namespace

CopyElements FindCopy(DType from, DType to) {
  if (from == to) return FindSameSize(ElementSize(from));
  const auto row = std::ranges::find(kFloats, from) - kFloats;
  const auto column = std::ranges::find(kFloats, to) - kFloats;
  return std::max(row, column) < std::ssize(kFloats) ? kConversions[row][column] : nullptr;
}

}  // namespace tessera
