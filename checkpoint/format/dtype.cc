#include "checkpoint/format/dtype.h"

#include <array>

namespace tessera::ckpt {
namespace {

struct NamedDType {
  DType dtype;
  std::string_view name;
};

constexpr std::array<NamedDType, 15> kNamedDTypes = {{
    {DType::kF64, "F64"},
    {DType::kF32, "F32"},
    {DType::kF16, "F16"},
    {DType::kBF16, "BF16"},
    {DType::kI64, "I64"},
    {DType::kI32, "I32"},
    {DType::kI16, "I16"},
    {DType::kI8, "I8"},
    {DType::kU8, "U8"},
    {DType::kBool, "BOOL"},
    {DType::kU16, "U16"},
    {DType::kU32, "U32"},
    {DType::kU64, "U64"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kF8E5M2, "F8_E5M2"},
}};

}  // namespace

std::string_view SafetensorsName(DType dtype) {
  for (const NamedDType& named : kNamedDTypes) {
    if (named.dtype == dtype) return named.name;
  }
  return {};
}

std::optional<DType> DTypeOfSafetensors(std::string_view name) {
  for (const NamedDType& named : kNamedDTypes) {
    if (named.name == name) return named.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera::ckpt
