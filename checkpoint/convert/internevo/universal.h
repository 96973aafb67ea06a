#ifndef TESSERA_CHECKPOINT_CONVERT_INTERNEVO_UNIVERSAL_H_
#define TESSERA_CHECKPOINT_CONVERT_INTERNEVO_UNIVERSAL_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/convert/foreign_checkpoint.h"
#include "checkpoint/convert/model_rules.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// Whether the folder holds a universal checkpoint: folders of DCP for model and optimizer.
absl::StatusOr<bool> IsInternEvoUniversal(Storage& storage, std::string_view folder);

// Its tensors, model and run. Errors: those of ReadInternEvo().
absl::StatusOr<ForeignCheckpoint> ReadInternEvoUniversal(Storage& storage, std::string_view folder,
                                                         const ModelRules& rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_INTERNEVO_UNIVERSAL_H_
