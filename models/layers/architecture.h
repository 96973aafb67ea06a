#ifndef TESSERA_MODELS_LAYERS_ARCHITECTURE_H_
#define TESSERA_MODELS_LAYERS_ARCHITECTURE_H_

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/foreign/format.h"
#include "models/layers/model.h"
#include "models/layers/parameter.h"

namespace tessera {

// A size of an architecture's models: the fields of ModelConfig that define it, in protobuf's text
// format.
struct NamedSize {
  std::string_view name;
  const char* fields;
};

// A family of models: everything that a config, a trainer and a checkpoint need to know of it.
// Functions are called with a config of this architecture; all but the first two with a resolved
// one.
struct Architecture {
  // The name in configs and manifests. For architectures that come with Tessera, the value of
  // ModelConfig.Architecture in lower case; for others, ModelConfig.other_architecture.
  std::string_view name;
  // The value in ModelConfig.Architecture; OTHER if the architecture has none of its own.
  ModelConfig::Architecture value = ModelConfig::OTHER;

  std::span<const NamedSize> sizes = {};
  void (*fill_defaults)(ModelConfig& config) = nullptr;
  // InvalidArgument: one sentence about the first wrong field.
  absl::Status (*validate)(const ModelConfig& config) = nullptr;

  // Makes a model, whose parameters are allocated, not initialised. options.stage is set and in
  // range, and the shards divide heads and columns.
  std::unique_ptr<Model> (*make_model)(const ModelConfig& config, const ModelOptions& options,
                                       Backend& backend) = nullptr;
  // Declares the parameters of a stage, as make_model does, without a model.
  void (*declare_parameters)(const ModelConfig& config, const ModelOptions& options,
                             ParameterSet& set) = nullptr;
  // Null in architectures whose checkpoints are not converted.
  const HuggingFaceFormat* hugging_face = nullptr;
  const LlmcFormat* llmc = nullptr;
  std::span<const ForeignFormat* const> foreign_formats = {};
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_ARCHITECTURE_H_
