#ifndef TESSERA_MODELS_FOREIGN_H_
#define TESSERA_MODELS_FOREIGN_H_

// Models in the files of frameworks that architectures declare a ForeignFormat for.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config.pb.h"
#include "models/foreign_files/parameter.h"

namespace tessera {

// The model that a framework's configuration, as a JSON object, describes; resolved.
// InvalidArgument: one sentence, for text that is no such object, models that no architecture has,
// and settings that its architecture does not have.
absl::StatusOr<ModelConfig> ReadForeignConfig(std::string_view framework,
                                              std::string_view config_json);

// The inverse. InvalidArgument where the framework has no such architecture. Precondition, here and
// below: a resolved config.
absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework,
                                               const ModelConfig& config);

// See ForeignFormat::parameters.
absl::StatusOr<std::vector<ForeignParameter>> ForeignParameters(std::string_view framework,
                                                                const ModelConfig& config);

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_H_
