#ifndef TESSERA_CONVERT_TORCH_STORAGE_CLASS_H_
#define TESSERA_CONVERT_TORCH_STORAGE_CLASS_H_

#include <cstdint>
#include <string_view>

#include "checkpoint/format/manifest.pb.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

// The class of a storage, "torch.FloatStorage", with what its elements are.
struct TorchStorageClass {
  std::string_view name;
  DType dtype = DTYPE_UNSPECIFIED;  // if this version has none
  uint64_t element_bytes = 0;
};

// The class that a global names. Null for an unknown one.
const TorchStorageClass* FindTorchStorageClass(const pickle::Value& global);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_STORAGE_CLASS_H_
