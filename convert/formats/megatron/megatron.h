#ifndef TESSERA_CONVERT_FORMATS_MEGATRON_MEGATRON_H_
#define TESSERA_CONVERT_FORMATS_MEGATRON_MEGATRON_H_

// Checkpoints of Megatron-LM and megatron-core.

#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns whether the root of the storage holds a checkpoint of Megatron-LM, of the backend
// torch_dist or with a folder for each rank, or is the folder of a run that names one.
absl::StatusOr<bool> IsMegatron(Storage& storage);

// Reads the model's weights under their logical names, the states of its optimizer, and the
// progress of the run. Errors: those of ReadMegatronLegacy() and of ReadDcpTensors(); Unimplemented
// for the backend zarr and for states of other optimizers.
absl::StatusOr<ForeignCheckpoint> ReadMegatron(Storage& storage);

// Plans the files of a folder that megatron-core's distributed checkpointing loads (torch_dist),
// with the arguments of Megatron-LM that describe the model. Layers are stacked. With master
// weights, the optimizer's state is written as that of the distributed optimizer in the format
// fully_reshardable, otherwise as that of the fp32 optimizer. Errors: InvalidArgument for a model
// that Megatron-Core does not have, weights of several dtypes, and states that only some parameters
// have; those of FindWeights().
absl::StatusOr<std::vector<OutputFile>> PlanMegatron(const Manifest& manifest,
                                                     const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_MEGATRON_MEGATRON_H_
