#ifndef TESSERA_CHECKPOINT_FORMAT_DTYPE_H_
#define TESSERA_CHECKPOINT_FORMAT_DTYPE_H_

// Dtypes and roles of tensors as files have them.

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/include/tensor_role.h"
#include "layout/dtype.h"

namespace tessera::ckpt {

// The same in the manifest's enums, and back. A number that this version does not know stays one.
inline DTypeProto ToProto(DType dtype) { return static_cast<DTypeProto>(dtype); }
inline RoleProto ToProto(TensorRole role) { return static_cast<RoleProto>(role); }
inline DType FromProto(DTypeProto dtype) { return static_cast<DType>(dtype); }
inline TensorRole FromProto(RoleProto role) { return static_cast<TensorRole>(role); }

// The names in the manifest's enums, for messages: "F32", "OPTIMIZER_STATE".
inline const std::string& ProtoName(DType dtype) { return DTypeProto_Name(ToProto(dtype)); }
inline const std::string& ProtoName(TensorRole role) { return RoleProto_Name(ToProto(role)); }

// The name in safetensors files: "F32", "BF16", ...; empty for a dtype that this version does not
// know.
std::string_view SafetensorsName(DType dtype);
std::optional<DType> DTypeOfSafetensors(std::string_view name);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_FORMAT_DTYPE_H_
