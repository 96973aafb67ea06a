#ifndef TESSERA_CONVERT_FORMATS_DCP_DCP_H_
#define TESSERA_CONVERT_FORMATS_DCP_DCP_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kDcp = "dcp";

// Returns whether the folder holds a checkpoint of torch.distributed.checkpoint (DCP).
absl::StatusOr<bool> IsDcp(Storage& storage, std::string_view folder);

// Reads the tensors of a folder that torch.distributed.checkpoint wrote, under their names there.
// Their chunks are files of torch.save() or safetensors files inside larger files. Tensors that
// share all their chunks are aliases. Tensors below "X.state." and "X.param_groups." are optimizer
// state if there is anything below the latter. Objects become values and tensors as in ReadTorch(),
// at the places that torch's planner records. Objects without either are named in the notes, and so
// are `unread` tensors: those of unknown dtypes, an optimizer's of unknown kinds, and those that
// ReadTorch() would not read in an object. `folder` is the root if an object may have tensors.
//
// Reads the metadata, the headers of all chunks, and objects. Errors: DataLoss, naming file and
// tensor or object;
// Unimplemented for compressed chunks and weights of unknown kinds; NotFound if a file is missing;
// those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadDcp(Storage& storage, std::string_view folder);

// Reads the tensors in no object; files are relative to the storage's root. `notes` may be null.
// Unimplemented, too, if one is not read.
absl::StatusOr<std::vector<ForeignTensor>> ReadDcpTensors(
    Storage& storage, std::string_view folder, std::vector<std::string>* notes = nullptr);

// Plans the files of a folder that torch.distributed.checkpoint loads: .metadata, and files of data
// in which each tensor is one chunk, and each value an object. Tied tensors share their chunk.
absl::StatusOr<std::vector<OutputFile>> PlanDcp(const Manifest& manifest,
                                                const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_DCP_DCP_H_
