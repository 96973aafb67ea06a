#ifndef TESSERA_CHECKPOINT_FORMAT_DTYPE_H_
#define TESSERA_CHECKPOINT_FORMAT_DTYPE_H_

// Names of dtypes in safetensors files.

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/include/manifest.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

// Returns the name in safetensors files: "F32", "BF16", ...; empty for a dtype that this version
// does not know.
std::string_view SafetensorsName(DType dtype);
std::optional<DType> DTypeOfSafetensors(std::string_view name);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_DTYPE_H_
