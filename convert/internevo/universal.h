#ifndef TESSERA_CONVERT_INTERNEVO_UNIVERSAL_H_
#define TESSERA_CONVERT_INTERNEVO_UNIVERSAL_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

// Whether the folder holds a universal checkpoint: folders of DCP for model and optimizer.
absl::StatusOr<bool> IsInternEvoUniversal(Storage& storage, std::string_view folder);

// Its tensors, model and run. Errors: those of ReadInternEvo().
absl::StatusOr<ForeignCheckpoint> ReadInternEvoUniversal(Storage& storage, std::string_view folder,
                                                         const ModelRules& rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INTERNEVO_UNIVERSAL_H_
