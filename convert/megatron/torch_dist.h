#ifndef TESSERA_CONVERT_MEGATRON_TORCH_DIST_H_
#define TESSERA_CONVERT_MEGATRON_TORCH_DIST_H_

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

// A checkpoint of megatron-core's distributed checkpointing, backend torch_dist: a folder of
// torch.distributed.checkpoint whose tensors are whole parameters, possibly stacked over layers,
// with common.pt. The model is the one that the arguments of the run describe. States of the
// optimizer are read in all formats: by parameter, those of the distributed optimizer also
// flattened as in releases up to 0.14, and by buffer (bucket_states.h).
// Which parameters a buffer has follows from the order of the modules and is checked by its size
// and its fp32 weights.
//
// Errors: DataLoss, naming file and tensor; InvalidArgument where there are no arguments, or they
// describe a model that `rules` do not have, or a tensor belongs to none of its parameters;
// Unimplemented for states of other optimizers; those of ReadDcp().
absl::StatusOr<ForeignCheckpoint> ReadMegatronTorchDist(Storage& storage, const std::string& folder,
                                                        const ModelRules& rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_TORCH_DIST_H_
