#ifndef TESSERA_LAYOUT_DTYPE_H_
#define TESSERA_LAYOUT_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tessera {

// The type of a tensor's elements. The numbers are the same as in the manifest's DTypeProto
// (checkpoint/FORMAT.md): never renumber.
enum class DType {
  kUnspecified = 0,
  kF64 = 1,
  kF32 = 2,
  kF16 = 3,
  kBF16 = 4,
  kI64 = 5,
  kI32 = 6,
  kI16 = 7,
  kI8 = 8,
  kU8 = 9,
  kBool = 10,
  kU16 = 11,
  kU32 = 12,
  kU64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
};

// Returns the bytes of one element; 0 for kUnspecified and for a dtype that this version does not
// know.
constexpr int64_t ElementSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
    case DType::kUnspecified:
      break;
  }
  return 0;
}

// Returns torch's name: "float32", "bfloat16", "float8_e4m3fn"; "unknown" for a dtype without an
// element size.
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI64:
      return "int64";
    case DType::kI32:
      return "int32";
    case DType::kI16:
      return "int16";
    case DType::kI8:
      return "int8";
    case DType::kU8:
      return "uint8";
    case DType::kBool:
      return "bool";
    case DType::kU16:
      return "uint16";
    case DType::kU32:
      return "uint32";
    case DType::kU64:
      return "uint64";
    case DType::kF8E4M3:
      return "float8_e4m3fn";
    case DType::kF8E5M2:
      return "float8_e5m2";
    case DType::kUnspecified:
      break;
  }
  return "unknown";
}

// The dtype of memory that holds elements of type T. Specialize it for a 16-bit floating type of
// the program's own:
//   template <>
//   inline constexpr tessera::DType tessera::kDTypeOf<Half> = tessera::DType::kF16;
template <typename T>
inline constexpr DType kDTypeOf = [] {
  constexpr size_t kBits = 8 * sizeof(T);
  if constexpr (std::is_same_v<T, bool>) return DType::kBool;
  if constexpr (std::is_floating_point_v<T>) {
    return kBits == 64 ? DType::kF64 : kBits == 32 ? DType::kF32 : DType::kUnspecified;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr bool kSigned = std::is_signed_v<T>;
    return kBits == 64   ? (kSigned ? DType::kI64 : DType::kU64)
           : kBits == 32 ? (kSigned ? DType::kI32 : DType::kU32)
           : kBits == 16 ? (kSigned ? DType::kI16 : DType::kU16)
                         : (kSigned ? DType::kI8 : DType::kU8);
  } else {
    return DType::kUnspecified;
  }
}();

}  // namespace tessera

#endif  // TESSERA_LAYOUT_DTYPE_H_
