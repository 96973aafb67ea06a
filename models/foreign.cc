#include "models/foreign.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/foreign_files/format.h"
#include "models/json_fields/json_fields.h"
#include "models/layers/architecture.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

// Null if the architecture has none.
const ForeignFormat* FindFormat(const Architecture& architecture, std::string_view framework) {
  for (const ForeignFormat* const format : architecture.foreign_formats) {
    if (format->framework == framework) return format;
  }
  return nullptr;
}

absl::StatusOr<const ForeignFormat*> FormatOf(std::string_view framework,
                                              const ModelConfig& config) {
  const Architecture* const architecture = FindArchitecture(config);
  const ForeignFormat* const format =
      architecture == nullptr ? nullptr : FindFormat(*architecture, framework);
  if (format != nullptr) return format;
  return absl::InvalidArgumentError(absl::StrCat(
      "the format ", std::string(framework), " has no architecture ", ArchitectureName(config)));
}

}  // namespace

absl::StatusOr<ModelConfig> ReadForeignConfig(std::string_view framework,
                                              std::string_view config_json) {
  const std::string source = absl::StrCat(std::string(framework), "'s configuration");
  TESSERA_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Parse(config_json, source));
  std::vector<std::string> known;
  for (const Architecture* const architecture : Architectures()) {
    const ForeignFormat* const format = FindFormat(*architecture, framework);
    if (format == nullptr) continue;
    known.emplace_back(architecture->name);
    if (!format->describes(fields)) continue;
    ModelConfig config;
    config.set_architecture(architecture->value);
    if (architecture->value == ModelConfig::OTHER) {
      config.set_other_architecture(std::string(architecture->name));
    }
    TESSERA_RETURN_IF_ERROR(format->read_config(fields, config));
    absl::StatusOr<ModelConfig> resolved = ResolveModelConfig(config);
    if (resolved.ok()) return resolved;
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", resolved.status().message()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, " describes a model of another kind than ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework,
                                               const ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const ForeignFormat* const format, FormatOf(framework, config));
  if (format->write_config == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("models are not written in the format ", std::string(framework)));
  }
  nlohmann::ordered_json json;
  format->write_config(config, json);
  return json.dump();
}

absl::StatusOr<std::vector<ForeignParameter>> ForeignParameters(std::string_view framework,
                                                                const ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(const ForeignFormat* const format, FormatOf(framework, config));
  return format->parameters(config);
}

}  // namespace tessera
