#ifndef TESSERA_CONVERT_FORMATS_INTERNEVO_INTERNEVO_H_
#define TESSERA_CONVERT_FORMATS_INTERNEVO_INTERNEVO_H_

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns whether the storage has a checkpoint that ReadInternEvo() would try to read.
absl::StatusOr<bool> IsInternEvo(Storage& storage);

// Reads a checkpoint of InternEvo's CheckpointManager in the root of the storage, or a universal
// checkpoint. The former has files of the model for each tensor-parallel or weight-parallel rank
// and stage, files of HybridZeroOptimizer for each ZeRO rank of these, model_config.pt and
// context.pt.
//
// Weights come from the model's files. The optimizer's fp32 weights are master weights, or copies
// if the model's weights are F32, too. Moments are "NAME.exp_avg" and "NAME.exp_avg_sq".
//
// Errors: DataLoss, naming files and tensors; InvalidArgument for an unknown model; Unimplemented
// for experts, FSDP, and optimizers without a plan; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadInternEvo(Storage& storage);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INTERNEVO_INTERNEVO_H_
