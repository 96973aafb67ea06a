#ifndef TESSERA_CONVERT_DCP_READ_H_
#define TESSERA_CONVERT_DCP_READ_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/include/storage.h"
#include "convert/core/foreign_checkpoint.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kDcp = "dcp";

// Whether the folder holds a checkpoint of torch.distributed.checkpoint (DCP).
absl::StatusOr<bool> IsDcp(Storage& storage, std::string_view folder);

// The tensors of a folder that torch.distributed.checkpoint wrote, under their names there. Their
// chunks are files of torch.save() or safetensors files inside larger files. Tensors that share all
// their chunks are aliases. Tensors below "X.state." where there is anything below
// "X.param_groups", too, are optimizer state. Objects become values as those of ReadTorch() do.
// Those that hold none, options of single parameters, and tensors of unknown dtypes are named in
// the notes.
//
// Reads the metadata and the headers of all chunks. Errors: DataLoss, naming file and tensor;
// Unimplemented for compressed chunks; NotFound where a file is missing; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadDcp(Storage& storage, std::string_view folder);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DCP_READ_H_
