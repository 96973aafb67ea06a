#ifndef TESSERA_CONVERT_FORMATS_INTERNEVO_INTERNEVO_H_
#define TESSERA_CONVERT_FORMATS_INTERNEVO_INTERNEVO_H_

#include "absl/status/statusor.h"
#include "convert/core/foreign_checkpoint.h"
#include "models/foreign/format.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Whether ReadInternEvo() would look at this storage.
absl::StatusOr<bool> IsInternEvo(Storage& storage);

// What InternEvo's CheckpointManager wrote in one folder, the root of the storage: files of the
// model for each tensor-parallel or weight-parallel rank and pipeline stage, those of
// HybridZeroOptimizer for each ZeRO rank of these, model_config.pt and context.pt; or a universal
// checkpoint.
//
// Weights come from the model's files. The fp32 ones of the optimizer are master weights, unless
// the model's are F32, too: they are then copies. Moments are "NAME.exp_avg" and "NAME.exp_avg_sq".
//
// Errors: DataLoss, naming files and tensors; InvalidArgument for a model that is not known here;
// Unimplemented for experts, FSDP, and optimizers without a plan; those of the storage.
absl::StatusOr<ForeignCheckpoint> ReadInternEvo(Storage& storage);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INTERNEVO_INTERNEVO_H_
