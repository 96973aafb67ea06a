#include "checkpoint/format/dtype.h"

#include <array>

namespace tessera::ckpt {
namespace {

struct DTypeInfo {
  DType dtype;
  size_t size_bytes;
  std::string_view name;
};

constexpr std::array<DTypeInfo, 15> kDTypes = {{
    {F64, 8, "F64"},
    {F32, 4, "F32"},
    {F16, 2, "F16"},
    {BF16, 2, "BF16"},
    {I64, 8, "I64"},
    {I32, 4, "I32"},
    {I16, 2, "I16"},
    {I8, 1, "I8"},
    {U8, 1, "U8"},
    {BOOL, 1, "BOOL"},
    {U16, 2, "U16"},
    {U32, 4, "U32"},
    {U64, 8, "U64"},
    {F8_E4M3, 1, "F8_E4M3"},
    {F8_E5M2, 1, "F8_E5M2"},
}};

}  // namespace

size_t DTypeSize(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info.size_bytes;
  }
  return 0;
}

std::string_view DTypeName(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info.name;
  }
  return {};
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera::ckpt
