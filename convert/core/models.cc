#include "convert/core/models.h"

#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/reading.h"
#include "google/protobuf/text_format.h"
#include "models/layers/architecture.h"
#include "models/registry.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

// Returns a config of this architecture whose other fields `read` sets, resolved. InvalidArgument
// for more layers than the files have tensors.
template <typename Read>
absl::StatusOr<ModelConfig> ReadConfig(const Architecture& architecture, const JsonFields& fields,
                                       int64_t tensor_count, const Read& read) {
  ModelConfig config;
  config.set_architecture(architecture.value);
  if (architecture.value == ModelConfig::OTHER) {
    config.set_other_architecture(std::string(architecture.name));
  }
  TESSERA_RETURN_IF_ERROR(read(fields, config));
  TESSERA_ASSIGN_OR_RETURN(config, In(fields.source(), ResolveModelConfig(config)));
  if (config.num_layers() <= tensor_count) return config;
  return InvalidArgument(fields.source(), ": ", config.num_layers(), " layers, but the files have ",
                         tensor_count, " tensors");
}

// Returns the first class of models that a config.json names; "" without one.
std::string ClassName(std::string_view config_json) {
  const nlohmann::json json = ParseJson(config_json);
  const nlohmann::json::json_pointer first("/architectures/0");
  const bool has_name = json.contains(first) && json.at(first).is_string();
  return has_name ? Shown(json.at(first).get<std::string>()) : "";
}

// Returns the parameters' names, those of each layer in the order of its tensors' names.
std::vector<std::string> ModuleOrder(std::vector<LogicalParameter> parameters,
                                     std::span<const std::string_view> layer_order) {
  const auto place = [&](const LogicalParameter& parameter) {
    return std::ranges::find_if(layer_order,
                                [&](std::string_view tensor) {
                                  return parameter.name.ends_with("." + std::string(tensor));
                                }) -
           layer_order.begin();
  };
  const auto layer = [](const LogicalParameter& parameter) {
    return parameter.partition.place.layer;
  };
  for (auto begin = parameters.begin(); begin != parameters.end();) {
    const auto end = std::find_if(begin, parameters.end(), [&](const LogicalParameter& other) {
      return layer(other) != layer(*begin);
    });
    if (layer(*begin) >= 0) std::ranges::stable_sort(begin, end, {}, place);
    begin = end;
  }
  std::vector<std::string> names;
  for (LogicalParameter& parameter : parameters) names.push_back(std::move(parameter.name));
  return names;
}

// Null if the architecture has none.
const ForeignFormat* FindFormat(const Architecture& architecture, std::string_view framework) {
  for (const ForeignFormat* const format : architecture.foreign_formats) {
    if (format->framework == framework) return format;
  }
  return nullptr;
}

absl::StatusOr<const ForeignFormat*> FormatOf(std::string_view framework,
                                              const ModelConfig& config) {
  const ForeignFormat* const format = FindFormat(*FindArchitecture(config), framework);
  if (format == nullptr) {
    return InvalidArgument("the format ", framework, " has no architecture ",
                           ArchitectureName(config));
  }
  if (format->check != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        In(absl::StrCat("the format ", std::string(framework), " does not have this model"),
           format->check(config)));
  }
  return format;
}

// Returns whether all tensors of the model's layers are among these.
bool HasLayers(const ModelDescription& model, const std::vector<std::string>& names) {
  const auto in_layer = [](const std::string& name) {
    const LayerName own = SplitLayer(WithoutWrappers(name));
    return own.layer < 0 ? "" : absl::StrCat(own.layer, own.after);
  };
  std::set<std::string> there = {""};
  for (const std::string& name : names) there.insert(in_layer(name));
  return std::ranges::all_of(model.parameters, [&](const LogicalParameter& parameter) {
    return there.contains(in_layer(parameter.name));
  });
}

}  // namespace

ModelDescription DescribeModel(const ModelConfig& config) {
  ModelDescription model = {.parameters = LogicalParameters(config)};
  model.config.set_architecture(ArchitectureName(config));
  google::protobuf::TextFormat::PrintToString(config, model.config.mutable_text());
  return model;
}

absl::StatusOr<ModelConfig> ConfigOf(const ModelProto& model) {
  ModelConfig config;
  if (model.text().empty() ||
      !google::protobuf::TextFormat::ParseFromString(model.text(), &config)) {
    return InvalidArgument(
        "the checkpoint has no configuration of a known model: put the model's config.json beside "
        "the files of another framework, or write the tensors as they are, in the format torch or "
        "dcp");
  }
  return ResolveModelConfig(config);
}

bool HuggingFaceDescription::IsComputed(const std::string& name) const {
  return std::ranges::any_of(format->computed, [&](std::string_view pattern) {
    return MatchesGlob(std::string(pattern), name) ||
           MatchesGlob(std::string(pattern), std::string(format->prefix) + name);
  });
}

std::string WhyOtherTensors(const HuggingFaceDescription* described,
                            const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto has = [&](const char* part) { return name.find(part) != name.npos; };
    if (has(".weight_scale")) return Shown(name) + " is a scale of quantized weights";
    if (!has(".base_layer.")) continue;
    return Shown(name) + " is a layer of peft beside its adapter: merge_and_unload() joins them";
  }
  if (described == nullptr) return "";
  const bool explains =
      described->other_tensors == kQuantized || HasLayers(described->model, names);
  return explains ? described->other_tensors : "";
}

absl::StatusOr<HuggingFaceDescription> ReadHuggingFaceConfig(std::string_view config_json,
                                                             int64_t tensor_count) {
  TESSERA_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Parse(config_json, "config.json"));
  TESSERA_ASSIGN_OR_RETURN(const std::string type, fields.Text("model_type", ""));
  std::vector<std::string> known;
  for (const Architecture* const architecture : Architectures()) {
    const HuggingFaceFormat* const format = architecture->hugging_face;
    if (format == nullptr) continue;
    known.emplace_back(format->model_type);
    if (format->model_type != type) continue;
    const auto read = [&](const JsonFields& json, ModelConfig& config) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const int64_t vocabulary, json.Integer("vocab_size"));
      config.set_vocab_size(vocabulary);
      return format->read_config(json, config);
    };
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config,
                             ReadConfig(*architecture, fields, tensor_count, read));
    HuggingFaceDescription description = {.model = DescribeModel(config), .format = format};
    const std::string class_name = ClassName(config_json);
    if (fields.Has("quantization_config")) {
      description.other_tensors = kQuantized;
    } else if (class_name != format->class_name && !class_name.empty()) {
      description.other_tensors = absl::StrCat("config.json: architectures is \"", class_name,
                                               "\", known is ", std::string(format->class_name));
    }
    description.order = ModuleOrder(description.model.parameters, format->layer_order);
    return description;
  }
  return Unimplemented("config.json: model_type is \"", type, "\", known are ",
                       absl::StrJoin(known, ", "));
}

absl::StatusOr<std::string> WriteHuggingFaceConfig(const ModelProto& model, DType dtype) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
  const HuggingFaceFormat* const format = FindArchitecture(config)->hugging_face;
  if (format == nullptr) {
    return InvalidArgument("Hugging Face's format has no architecture ", ArchitectureName(config));
  }
  nlohmann::ordered_json json;
  json["architectures"] = {std::string(format->class_name)};
  json["model_type"] = std::string(format->model_type);
  json["vocab_size"] = config.vocab_size();
  json["initializer_range"] = config.init_method_std();
  json["tie_word_embeddings"] = !config.untie_embeddings_and_output_weights();
  json["torch_dtype"] = dtype == DType::kBF16  ? "bfloat16"
                        : dtype == DType::kF16 ? "float16"
                                               : "float32";
  // Without the tokenizer's special ids, transformers would assume those of GPT-2.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  format->write_config(config, json);
  return json.dump(2) + "\n";
}

absl::StatusOr<ModelDescription> ReadForeignConfig(std::string_view framework,
                                                   std::string_view config_json,
                                                   int64_t tensor_count) {
  const std::string source = absl::StrCat(std::string(framework), "'s configuration");
  TESSERA_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Parse(config_json, source));
  std::vector<std::string> known;
  for (const Architecture* const architecture : Architectures()) {
    const ForeignFormat* const format = FindFormat(*architecture, framework);
    if (format == nullptr) continue;
    known.emplace_back(architecture->name);
    if (!format->describes(fields)) continue;
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config,
                             ReadConfig(*architecture, fields, tensor_count, format->read_config));
    return DescribeModel(config);
  }
  return InvalidArgument(source, " describes a model of another kind than ",
                         absl::StrJoin(known, ", "));
}

absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework,
                                               const ModelProto& model) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
  TESSERA_ASSIGN_OR_RETURN(const ForeignFormat* const format, FormatOf(framework, config));
  if (format->write_config == nullptr) {
    return InvalidArgument("cannot write a model in the format ", framework);
  }
  nlohmann::ordered_json json;
  format->write_config(config, json);
  return json.dump();
}

absl::StatusOr<std::vector<ForeignParameter>> ForeignParameters(std::string_view framework,
                                                                const ModelProto& model) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
  TESSERA_ASSIGN_OR_RETURN(const ForeignFormat* const format, FormatOf(framework, config));
  return format->parameters(config);
}

absl::StatusOr<ForeignModel> ForeignModel::Read(std::string_view framework,
                                                std::string_view config_json, int64_t tensor_count,
                                                uint64_t file_bytes) {
  ForeignModel model;
  TESSERA_ASSIGN_OR_RETURN(model.description_,
                           ReadForeignConfig(framework, config_json, tensor_count));
  TESSERA_RETURN_IF_ERROR(CheckModelFits(model.description_, file_bytes));
  TESSERA_ASSIGN_OR_RETURN(model.parameters_,
                           ForeignParameters(framework, model.description_.config));
  for (size_t i = 0; i < model.parameters_.size(); ++i) {
    model.by_name_.emplace(model.parameters_[i].name, i);
    for (const std::string& name : model.parameters_[i].other_names) {
      model.by_name_.emplace(name, i);
    }
  }
  return model;
}

std::vector<ForeignParameter*> ForeignModel::Named(std::string_view name) {
  std::vector<ForeignParameter*> named;
  const auto [begin, end] = by_name_.equal_range(name);
  for (auto at = begin; at != end; ++at) named.push_back(&parameters_[at->second]);
  return named;
}

ForeignParameter* ForeignModel::Find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

}  // namespace tessera::ckpt::convert
