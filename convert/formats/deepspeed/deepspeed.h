#ifndef TESSERA_CONVERT_FORMATS_DEEPSPEED_DEEPSPEED_H_
#define TESSERA_CONVERT_FORMATS_DEEPSPEED_DEEPSPEED_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kDeepSpeed = "deepspeed";

// Returns whether the storage has a checkpoint that ReadDeepSpeed() would try to read.
absl::StatusOr<bool> IsDeepSpeed(Storage& storage);

// Reads a checkpoint of DeepSpeed's save_checkpoint(), with ZeRO stage 1, 2 or 3 over any number of
// ranks, or a universal checkpoint. The root of the storage is the folder that the program named,
// whose file "latest" names a folder in it, or that inner folder.
//
// The weights are those with which the engine computed. If these are rounded, the fp32 weights
// become master weights; stage 3 has only the fp32 weights. Adam's moments are "NAME.exp_avg" and
// "NAME.exp_avg_sq". With a config.json of Hugging Face in either folder, its model gives the
// tensors their names and layouts; otherwise they have DeepSpeed's names.
//
// Unless moments are needed, those in damaged files of a universal checkpoint are left out, with a
// note.
//
// Errors: DataLoss, naming file and tensor, and for missing files of ranks; Unimplemented for files
// of model-parallel ranks and of experts; InvalidArgument for an unknown model; those of the
// storage.
absl::StatusOr<ForeignCheckpoint> ReadDeepSpeed(Storage& storage, bool needs_moments = true);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_DEEPSPEED_DEEPSPEED_H_
