#include "convert/torch/storage_class.h"

#include <string>

namespace tessera::ckpt::convert {
namespace {

constexpr TorchStorageClass kStorageClasses[] = {
    {"DoubleStorage", F64, 8},
    {"FloatStorage", F32, 4},
    {"HalfStorage", F16, 2},
    {"BFloat16Storage", BF16, 2},
    {"LongStorage", I64, 8},
    {"IntStorage", I32, 4},
    {"ShortStorage", I16, 2},
    {"CharStorage", I8, 1},
    {"ByteStorage", U8, 1},
    {"BoolStorage", BOOL, 1},
    {"UntypedStorage", DTYPE_UNSPECIFIED, 1},
    {"ComplexFloatStorage", DTYPE_UNSPECIFIED, 8},
    {"ComplexDoubleStorage", DTYPE_UNSPECIFIED, 16},
    {"QUInt8Storage", DTYPE_UNSPECIFIED, 1},
    {"QInt8Storage", DTYPE_UNSPECIFIED, 1},
    {"QInt32Storage", DTYPE_UNSPECIFIED, 4},
    {"QUInt4x2Storage", DTYPE_UNSPECIFIED, 1},
    {"QUInt2x4Storage", DTYPE_UNSPECIFIED, 1},
};

}  // namespace

const TorchStorageClass* FindTorchStorageClass(const pickle::Value& global) {
  const std::string name = global.GlobalName();
  if (!name.starts_with("torch.")) return nullptr;
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  for (const TorchStorageClass& known : kStorageClasses) {
    if (known.name == last) return &known;
  }
  return nullptr;
}

}  // namespace tessera::ckpt::convert
