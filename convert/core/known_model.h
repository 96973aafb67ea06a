#ifndef TESSERA_CONVERT_CORE_KNOWN_MODEL_H_
#define TESSERA_CONVERT_CORE_KNOWN_MODEL_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

// A model, and the ways in which state dicts name its parameters.
struct KnownModel {
  ModelDescription description;
  std::vector<std::string> computed;  // patterns of tensors that are no parameters
  // In the order in which they are tried; parameters in the order of the modules.
  std::vector<std::vector<ForeignParameter>> namings;
};

// The model of a state dict in `folder`; see NameStateDict() for the arguments. InvalidArgument
// where the files or the caller describe a model that is not known; nullopt where they describe
// none.
absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, std::string_view folder,
                                                    const ModelRules& rules,
                                                    const ModelConfig* model,
                                                    std::string_view framework,
                                                    const ForeignCheckpoint& checkpoint);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_KNOWN_MODEL_H_
