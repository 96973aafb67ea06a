#ifndef TESSERA_CONVERT_FORMATS_DEEPSPEED_DEEPSPEED_H_
#define TESSERA_CONVERT_FORMATS_DEEPSPEED_DEEPSPEED_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kDeepSpeed = "deepspeed";

// Whether ReadDeepSpeed() would look at this storage.
absl::StatusOr<bool> IsDeepSpeed(Storage& storage);

// What DeepSpeed's save_checkpoint() wrote, with ZeRO stage 1, 2 or 3 over any number of ranks, or
// a universal checkpoint. The root of the storage is the folder that the program named, whose file
// "latest" names a folder in it, or that inner one.
//
// The weights are those that the engine computed with and, where these are rounded, the fp32 ones
// are master weights; stage 3 has the fp32 weights alone. Adam's moments are "NAME.exp_avg" and
// "NAME.exp_avg_sq". With a config.json of Hugging Face in either folder, its model gives the
// tensors their names and layouts; without, they have the names that DeepSpeed has.
//
// Errors: DataLoss, naming file and tensor, and for files of ranks that are missing; Unimplemented
// for files of model-parallel ranks and of experts; InvalidArgument for a model that is not known
// here; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadDeepSpeed(Storage& storage);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_DEEPSPEED_DEEPSPEED_H_
