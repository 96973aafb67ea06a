#ifndef TESSERA_CONVERT_MEGATRON_LEGACY_H_
#define TESSERA_CONVERT_MEGATRON_LEGACY_H_

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

// A checkpoint of Megatron-LM's format `torch`: a folder mp_rank_TT or mp_rank_TT_PPP for each rank
// of the tensor- and pipeline-parallel grid, with model_optim_rng.pt and, of the distributed
// optimizer, distrib_optim.pt. The state of the optimizers stands there without names: which
// parameter it belongs to follows from the order of the parameters in model_optim_rng.pt, and is
// checked by sizes, shapes and, where there are fp32 weights, their values.
//
// Errors: DataLoss, naming file and tensor, also for files of ranks that are missing or do not
// belong together; InvalidArgument where there are no arguments, or they describe a model that
// `rules` do not have; Unimplemented for experts, and for models of before Megatron-Core.
absl::StatusOr<ForeignCheckpoint> ReadMegatronLegacy(Storage& storage, const std::string& folder,
                                                     const ModelRules& rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_LEGACY_H_
