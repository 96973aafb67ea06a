#include "trainer/convert/model_rules.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/manifest.h"
#include "google/protobuf/text_format.h"
#include "models/config/config.pb.h"
#include "models/foreign.h"
#include "models/foreign_files/parameter.h"
#include "models/hugging_face.h"
#include "models/llmc.h"
#include "models/logical_parameters.h"
#include "models/model_config.h"

namespace tessera {
namespace {

using ckpt::convert::HuggingFaceDescription;
using ckpt::convert::LlmcDescription;
using ckpt::convert::LlmcOutput;
using ckpt::convert::ModelDescription;

ckpt::Partition ToCheckpoint(const Partition& partition) {
  return {.dim = partition.dim,
          .sections = partition.sections,
          .padded = partition.padded,
          .layer = partition.place.layer,
          .before_layers = partition.place.before_layers,
          .after_layers = partition.place.after_layers};
}

// Precondition: resolved.
ModelDescription DescribeModel(const ModelConfig& config) {
  ModelDescription model;
  model.config.set_architecture(ArchitectureName(config));
  google::protobuf::TextFormat::PrintToString(config, model.config.mutable_text());
  for (LogicalParameter& parameter : LogicalParameters(config)) {
    model.parameters.push_back({.name = std::move(parameter.name),
                                .shape = std::move(parameter.shape),
                                .partition = ToCheckpoint(parameter.partition),
                                .weight_decay = parameter.weight_decay,
                                .tied_name = std::move(parameter.tied_name)});
  }
  return model;
}

// The parameters' names, those of each layer in the order of its tensors' names.
std::vector<std::string> ModuleOrder(const std::vector<ckpt::convert::ModelParameter>& parameters,
                                     std::span<const std::string_view> layer_order) {
  const auto place = [&](const ckpt::convert::ModelParameter& parameter) {
    return std::ranges::find_if(layer_order,
                                [&](std::string_view tensor) {
                                  return parameter.name.ends_with("." + std::string(tensor));
                                }) -
           layer_order.begin();
  };
  std::vector<ckpt::convert::ModelParameter> ordered = parameters;
  for (auto begin = ordered.begin(); begin != ordered.end();) {
    const auto layer = [](const auto& parameter) { return parameter.partition.layer; };
    const auto end = std::find_if(begin, ordered.end(),
                                  [&](const auto& other) { return layer(other) != layer(*begin); });
    if (layer(*begin) >= 0) std::ranges::stable_sort(begin, end, {}, place);
    begin = end;
  }
  std::vector<std::string> names;
  for (ckpt::convert::ModelParameter& parameter : ordered) {
    names.push_back(std::move(parameter.name));
  }
  return names;
}

ckpt::convert::ForeignParameter ToCheckpoint(ForeignParameter parameter) {
  ckpt::convert::ForeignParameter converted = {.name = std::move(parameter.name),
                                               .shape = std::move(parameter.shape),
                                               .tensor_parallel_dim = parameter.tensor_parallel_dim,
                                               .sections = parameter.sections,
                                               .padded = parameter.padded,
                                               .other_names = std::move(parameter.other_names)};
  for (ForeignBlock& block : parameter.blocks) {
    converted.blocks.push_back({.name = std::move(block.name),
                                .box = {std::move(block.offset), std::move(block.shape)},
                                .foreign_offset = std::move(block.foreign_offset),
                                .transposed = block.transposed,
                                .foreign_step = std::move(block.foreign_step)});
  }
  return converted;
}

class RulesOfModels final : public ckpt::convert::ModelRules {
 public:
  absl::StatusOr<HuggingFaceDescription> ReadHuggingFaceConfig(
      std::string_view config_json, int64_t tensor_count) const override {
    TESSERA_ASSIGN_OR_RETURN(const HuggingFaceModel model,
                             tessera::ReadHuggingFaceConfig(config_json));
    if (model.config.num_layers() > tensor_count) {
      return absl::InvalidArgumentError(absl::StrCat("config.json: ", model.config.num_layers(),
                                                     " layers, but the files have ", tensor_count,
                                                     " tensors"));
    }
    HuggingFaceDescription description = {.model = DescribeModel(model.config),
                                          .prefix = std::string(model.format->prefix)};
    for (const std::string_view pattern : model.format->computed) {
      description.computed.emplace_back(pattern);
    }
    description.order = ModuleOrder(description.model.parameters, model.format->layer_order);
    return description;
  }

  absl::StatusOr<std::string> WriteHuggingFaceConfig(const ckpt::ModelConfig& model,
                                                     ckpt::DType dtype) const override {
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
    const std::string_view name = dtype == ckpt::BF16  ? "bfloat16"
                                  : dtype == ckpt::F16 ? "float16"
                                                       : "float32";
    return tessera::WriteHuggingFaceConfig(config, name);
  }

  absl::StatusOr<LlmcDescription> ReadLlmcHeader(const std::string& name,
                                                 std::span<const std::byte> header,
                                                 uint64_t file_bytes) const override {
    TESSERA_ASSIGN_OR_RETURN(const LlmcFileInfo info,
                             ParseLlmcInfo(name, header, static_cast<int64_t>(file_bytes)));
    return Describe(info);
  }

  absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ckpt::ModelConfig& model,
                                             ckpt::DType dtype) const override {
    if (dtype != ckpt::F32 && dtype != ckpt::BF16) {
      return absl::InvalidArgumentError(
          absl::StrCat("a llm.c file has F32 or BF16, not ", ckpt::DType_Name(dtype)));
    }
    LlmcFileInfo info;
    TESSERA_ASSIGN_OR_RETURN(info.config, ConfigOf(model));
    info.options.dtype = dtype == ckpt::BF16 ? DType::kBF16 : DType::kF32;
    TESSERA_ASSIGN_OR_RETURN(const LlmcHeader header, MakeLlmcHeader(info.config, info.options));
    info.padded_vocab_size = header[7];
    const auto bytes = std::as_bytes(std::span(header));
    return LlmcOutput{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}, Describe(info)};
  }

  absl::StatusOr<ModelDescription> ReadForeignConfig(std::string_view framework,
                                                     std::string_view config_json,
                                                     int64_t tensor_count) const override {
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config,
                             tessera::ReadForeignConfig(framework, config_json));
    if (config.num_layers() > tensor_count) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(framework), "'s configuration has ", config.num_layers(),
                       " layers, but the files have ", tensor_count, " tensors"));
    }
    return DescribeModel(config);
  }

  absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework,
                                                 const ckpt::ModelConfig& model) const override {
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
    return tessera::WriteForeignConfig(framework, config);
  }

  absl::StatusOr<std::vector<ckpt::convert::ForeignParameter>> ForeignParameters(
      std::string_view framework, const ckpt::ModelConfig& model) const override {
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(model));
    TESSERA_ASSIGN_OR_RETURN(std::vector<ForeignParameter> parameters,
                             tessera::ForeignParameters(framework, config));
    std::vector<ckpt::convert::ForeignParameter> converted;
    for (ForeignParameter& parameter : parameters) {
      converted.push_back(ToCheckpoint(std::move(parameter)));
    }
    return converted;
  }

 private:
  static absl::StatusOr<ModelConfig> ConfigOf(const ckpt::ModelConfig& model) {
    ModelConfig config;
    if (model.text().empty() ||
        !google::protobuf::TextFormat::ParseFromString(model.text(), &config)) {
      return absl::InvalidArgumentError(
          "the checkpoint does not have the configuration of a model that is known here");
    }
    return ResolveModelConfig(config);
  }

  static LlmcDescription Describe(const LlmcFileInfo& info) {
    LlmcDescription description = {
        .model = DescribeModel(info.config),
        .dtype = info.options.dtype == DType::kBF16 ? ckpt::BF16 : ckpt::F32};
    for (const LlmcTensor& tensor : LlmcTensors(info)) {
      description.tensors.push_back({.name = tensor.name,
                                     .rows = tensor.rows,
                                     .columns = tensor.columns,
                                     .real_rows = tensor.real_rows,
                                     .transposed = tensor.transposed,
                                     .interleaved_head_size = tensor.interleaved_head_size});
    }
    return description;
  }
};

}  // namespace

const ckpt::convert::ModelRules& RegisteredModelRules() {
  static const RulesOfModels rules;
  return rules;
}

}  // namespace tessera
