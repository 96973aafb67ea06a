#ifndef TESSERA_COMPUTE_TENSOR_DTYPE_H_
#define TESSERA_COMPUTE_TENSOR_DTYPE_H_

#include <bit>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class DType { kF32, kBF16, kF64, kI32 };

// Bytes per element.
constexpr int64_t ElementSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF64:
      return 8;
  }
  return 0;
}

// "float32", "bfloat16", "float64", "int32".
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF64:
      return "float64";
    case DType::kI32:
      return "int32";
  }
  return "unknown";
}

// The upper half of an IEEE fp32, rounded to nearest even on conversion (NaN stays NaN).
struct BFloat16 {
  uint16_t bits = 0;

  constexpr BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = word & 0x7fffffff;
    // A NaN keeps its sign and upper payload; setting the quiet bit keeps the payload nonzero.
    bits = magnitude > 0x7f800000
               ? static_cast<uint16_t>((word >> 16) | 0x40)
               : static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  constexpr explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};
static_assert(sizeof(BFloat16) == 2);

}  // namespace tessera

#endif  // TESSERA_COMPUTE_TENSOR_DTYPE_H_
