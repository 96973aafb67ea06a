#ifndef TESSERA_CONVERT_MEGATRON_READ_H_
#define TESSERA_CONVERT_MEGATRON_READ_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

// Whether the folder holds a checkpoint of Megatron-LM; see FindMegatronFolder().
absl::StatusOr<bool> IsMegatron(Storage& storage, std::string_view folder);

// The model's weights under their logical names, the states of its optimizer, and how far the run
// is. Without rules, which may be null, the tensors are those of ReadDcp(), with Megatron's names.
absl::StatusOr<ForeignCheckpoint> ReadMegatron(Storage& storage, std::string_view folder,
                                               const ModelRules* rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_MEGATRON_READ_H_
