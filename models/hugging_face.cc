#include "models/hugging_face.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/json_fields/json_fields.h"
#include "models/layers/architecture.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

// The architecture with this model_type; null if there is none.
const Architecture* Find(const std::string& model_type, std::vector<std::string>* known) {
  for (const Architecture* architecture : Architectures()) {
    if (architecture->hugging_face == nullptr) continue;
    if (architecture->hugging_face->model_type == model_type) return architecture;
    known->emplace_back(architecture->hugging_face->model_type);
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<HuggingFaceModel> ReadHuggingFaceConfig(std::string_view config_json) {
  TESSERA_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Parse(config_json, "config.json"));
  TESSERA_ASSIGN_OR_RETURN(const std::string type, fields.Text("model_type", ""));
  std::vector<std::string> known;
  const Architecture* const architecture = Find(type, &known);
  if (architecture == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: model_type is \"", type,
                                                   "\", known are ", absl::StrJoin(known, ", ")));
  }
  ModelConfig config;
  config.set_architecture(architecture->value);
  if (architecture->value == ModelConfig::OTHER) {
    config.set_other_architecture(std::string(architecture->name));
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t vocabulary, fields.Integer("vocab_size"));
  config.set_vocab_size(vocabulary);
  TESSERA_RETURN_IF_ERROR(architecture->hugging_face->read_config(fields, config));
  absl::StatusOr<ModelConfig> resolved = ResolveModelConfig(config);
  if (!resolved.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", resolved.status().message()));
  }
  return HuggingFaceModel{*std::move(resolved), architecture->hugging_face};
}

absl::StatusOr<std::string> WriteHuggingFaceConfig(const ModelConfig& config,
                                                   std::string_view dtype) {
  const Architecture* const architecture = FindArchitecture(config);
  if (architecture == nullptr || architecture->hugging_face == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("Hugging Face's format has no architecture ", ArchitectureName(config)));
  }
  const HuggingFaceFormat& format = *architecture->hugging_face;
  nlohmann::ordered_json json;
  json["architectures"] = {std::string(format.class_name)};
  json["model_type"] = std::string(format.model_type);
  json["vocab_size"] = config.vocab_size();
  json["initializer_range"] = config.init_method_std();
  json["tie_word_embeddings"] = !config.untie_embeddings_and_output_weights();
  json["torch_dtype"] = std::string(dtype);
  // Token ids are the tokenizer's: without these, GPT-2's own would be assumed.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  format.write_config(config, json);
  return json.dump(2) + "\n";
}

}  // namespace tessera
