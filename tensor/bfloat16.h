#ifndef TESSERA_TENSOR_BFLOAT16_H_
#define TESSERA_TENSOR_BFLOAT16_H_

#include <bit>
#include <cstdint>

namespace tessera {

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

#endif  // TESSERA_TENSOR_BFLOAT16_H_
