#include "models/model_config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/flag_options.pb.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "layout/box.h"
#include "models/layers/architecture.h"
#include "models/layers/model.h"
#include "models/layers/parameter.h"
#include "models/registry.h"

namespace tessera {
namespace {

// Returns the config of the named size, or an empty one without a name.
absl::StatusOr<ModelConfig> Base(const std::string& size) {
  ModelConfig config;
  if (size.empty()) return config;
  for (const Architecture* architecture : Architectures()) {
    for (const NamedSize& named : architecture->sizes) {
      if (named.name != size) continue;
      CHECK(google::protobuf::TextFormat::ParseFromString(named.fields, &config)) << size;
      config.set_architecture(architecture->value);
      return config;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("size is \"", size, "\": it must be one of ",
                                                 absl::StrJoin(ModelSizeNames(), ", ")));
}

absl::Status UnknownArchitecture(const ModelConfig& config) {
  if (config.architecture() == ModelConfig::ARCHITECTURE_UNSPECIFIED) {
    std::vector<std::string> known;
    for (const Architecture* architecture : Architectures()) {
      if (architecture->value != ModelConfig::OTHER) known.emplace_back(architecture->name);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("architecture is missing: give --size, or --architecture with ",
                     absl::StrJoin(known, " or "), "; see --help"));
  }
  return absl::InvalidArgumentError(absl::StrCat("other_architecture is \"",
                                                 config.other_architecture(),
                                                 "\", which this program does not have"));
}

using google::protobuf::FieldDescriptor;

std::string ValueOf(const ModelConfig& config, const FieldDescriptor& field) {
  if (!config.GetReflection()->HasField(config, &field)) return "unset";
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(config, &field, /*index=*/-1, &text);
  return text;
}

bool HaveSameValue(const ModelConfig& a, const ModelConfig& b, const FieldDescriptor& field) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_DOUBLE) {
    return ValueOf(a, field) == ValueOf(b, field);
  }
  const auto real = [&](const ModelConfig& config) {
    return static_cast<float>(config.GetReflection()->GetDouble(config, &field));
  };
  return real(a) == real(b);
}

ModelConfig WithLayers(ModelConfig config, int64_t layers) {
  config.set_num_layers(layers);
  return config;
}

int64_t CountElements(const ModelConfig& config) {
  int64_t count = 0;
  for (const LogicalParameter& p : LogicalParameters(config)) count += ElementCount(p.shape);
  return count;
}

}  // namespace

std::vector<std::string> ModelSizeNames() {
  std::vector<std::string> names;
  for (const Architecture* architecture : Architectures()) {
    for (const NamedSize& named : architecture->sizes) names.emplace_back(named.name);
  }
  return names;
}

std::string ArchitectureName(const ModelConfig& config) {
  if (config.architecture() == ModelConfig::OTHER) return config.other_architecture();
  return absl::AsciiStrToLower(ModelConfig::Architecture_Name(config.architecture()));
}

absl::StatusOr<ModelConfig> ResolveModelConfig(const ModelConfig& config) {
  TESSERA_ASSIGN_OR_RETURN(ModelConfig resolved, Base(config.size()));
  if (!config.size().empty() && config.architecture() != ModelConfig::ARCHITECTURE_UNSPECIFIED &&
      config.architecture() != resolved.architecture()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "architecture is ", ModelConfig::Architecture_Name(config.architecture()), ", but size \"",
        config.size(), "\" is ", ModelConfig::Architecture_Name(resolved.architecture())));
  }
  resolved.MergeFrom(config);
  if (resolved.architecture() != ModelConfig::OTHER && !resolved.other_architecture().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("other_architecture is \"",
                                                   resolved.other_architecture(),
                                                   "\", but architecture is not OTHER"));
  }
  const Architecture* const architecture = FindArchitecture(resolved);
  if (architecture == nullptr) return UnknownArchitecture(resolved);
  architecture->fill_defaults(resolved);
  TESSERA_RETURN_IF_ERROR(architecture->validate(resolved));
  return resolved;
}

std::string Describe(const FieldDifference& field) {
  return absl::StrCat(field.name, " is ", field.found, ", not ", field.wanted);
}

std::vector<FieldDifference> ModelDifferences(const ModelConfig& found, const ModelConfig& wanted) {
  const bool is_scaled = found.use_rope_scaling() || wanted.use_rope_scaling();
  const google::protobuf::Descriptor& fields = *ModelConfig::descriptor();
  std::vector<FieldDifference> differences;
  for (int i = 0; i < fields.field_count(); ++i) {
    const FieldDescriptor& field = *fields.field(i);
    if (field.options().GetExtension(effect) != Effect::RESULTS ||
        absl::EndsWith(field.name(), "_dropout") ||
        (!is_scaled && absl::StartsWith(field.name(), "rope_scaling_")) ||
        HaveSameValue(found, wanted, field)) {
      continue;
    }
    differences.push_back({field.name(), ValueOf(found, field), ValueOf(wanted, field)});
  }
  return differences;
}

std::vector<FieldDifference> FunctionDifferences(const ModelConfig& found,
                                                 const ModelConfig& wanted) {
  std::vector<FieldDifference> differences = ModelDifferences(found, wanted);
  std::erase_if(differences, [](const FieldDifference& field) {
    return field.name == "untie_embeddings_and_output_weights";
  });
  return differences;
}

// Layers are alike, and a config may state more of them than there is memory to declare.
int64_t ParameterCount(const ModelConfig& config) {
  const int64_t one = CountElements(WithLayers(config, 1));
  return one + (config.num_layers() - 1) * (CountElements(WithLayers(config, 2)) - one);
}

int64_t HeadInLayers(const ModelConfig& config) {
  int64_t layer = 0;
  for (const LogicalParameter& p : LogicalParameters(WithLayers(config, 1))) {
    if (p.partition.place.layer == 0 && p.shape.size() > 1) layer += ElementCount(p.shape);
  }
  return std::llround(static_cast<double>(config.vocab_size()) *
                      static_cast<double>(config.hidden_size()) / static_cast<double>(layer));
}

std::vector<LogicalParameter> LogicalParameters(const ModelConfig& config) {
  ModelOptions whole;
  whole.stage = AllLayers(config.num_layers());
  whole.tensor_parallel = &kNoTensorParallel;
  ParameterSet set;
  FindArchitecture(config)->declare_parameters(config, whole, set);
  std::vector<LogicalParameter> parameters;
  for (const Parameter* parameter : set.parameters()) {
    for (const ParameterPiece& piece : parameter->pieces) {
      // Sections of one tensor are pieces of their own.
      const bool seen = !parameters.empty() && parameters.back().name == piece.name;
      if (seen) continue;
      parameters.push_back({.name = piece.name,
                            .shape = piece.global_shape,
                            .partition = piece.partition,
                            .weight_decay = parameter->weight_decay,
                            .tied_name = parameter->tied_name});
    }
  }
  return parameters;
}

}  // namespace tessera
