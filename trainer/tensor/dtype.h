#ifndef TESSERA_TRAINER_TENSOR_DTYPE_H_
#define TESSERA_TRAINER_TENSOR_DTYPE_H_

#include <cstdint>
#include <string_view>

namespace tessera {

enum class DType { kF32, kBF16, kF64, kI32 };

int64_t ElementSize(DType dtype);  // bytes
std::string_view DTypeName(DType dtype);  // "float32", "bfloat16", "float64", "int32"

// The upper half of an IEEE fp32, rounded to nearest even on conversion (NaN stays NaN).
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_TENSOR_DTYPE_H_
