#ifndef TESSERA_MODELS_FOREIGN_FILES_FORMAT_H_
#define TESSERA_MODELS_FOREIGN_FILES_FORMAT_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/config/config.pb.h"
#include "models/foreign_files/parameter.h"
#include "models/json_fields/json_fields.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What another framework's files of an architecture are like.
struct ForeignFormat {
  std::string_view framework;  // "megatron"
  // Whether a configuration of the framework is of this architecture. At most one architecture may
  // say so.
  bool (*describes)(const JsonFields& fields) = nullptr;
  // Sets the fields of the config that the framework's configuration defines. InvalidArgument: one
  // sentence, where it asks for something that this architecture does not have.
  absl::Status (*read_config)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // The inverse, for a resolved config. Null: the framework's files are not written.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json& json) = nullptr;
  // All parameters of a model with a resolved config. Those that files may have either one by one
  // or stacked are given in both forms.
  std::vector<ForeignParameter> (*parameters)(const ModelConfig& config) = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_FILES_FORMAT_H_
