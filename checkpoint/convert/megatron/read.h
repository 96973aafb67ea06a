#ifndef TESSERA_CHECKPOINT_CONVERT_MEGATRON_READ_H_
#define TESSERA_CHECKPOINT_CONVERT_MEGATRON_READ_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/convert/foreign_checkpoint.h"
#include "checkpoint/convert/model_rules.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// Whether the folder holds a checkpoint of Megatron-LM; see FindMegatronFolder().
absl::StatusOr<bool> IsMegatron(Storage& storage, std::string_view folder);

// The model's weights under their logical names, the states of its optimizer, and how far the run
// is. Without rules, which may be null, the tensors are those of ReadDcp(), with Megatron's names.
absl::StatusOr<ForeignCheckpoint> ReadMegatron(Storage& storage, std::string_view folder,
                                               const ModelRules* rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_MEGATRON_READ_H_
