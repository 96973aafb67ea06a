#ifndef TESSERA_CHECKPOINT_FORMAT_DTYPE_H_
#define TESSERA_CHECKPOINT_FORMAT_DTYPE_H_

#include <cstddef>
#include <optional>
#include <string_view>

#include "checkpoint/format/manifest.pb.h"

namespace tessera::ckpt {

// Bytes of one element; 0 for a dtype that this version does not know.
size_t DTypeSize(DType dtype);

// The name in safetensors files: "F32", "BF16", ...; empty for a dtype that this version does not
// know.
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_DTYPE_H_
