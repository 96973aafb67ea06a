#ifndef TESSERA_CONVERT_CORE_MODELS_H_
#define TESSERA_CONVERT_CORE_MODELS_H_

// Models as manifests describe them, and as the configurations of other frameworks do.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "layout/dtype.h"
#include "layout/partition.h"
#include "models/config/config.pb.h"
#include "models/foreign/format.h"
#include "models/model_config.h"

namespace tessera::ckpt::convert {

// A model, and the parameters that its architecture declares.
struct ModelDescription {
  ModelProto config;  // as manifests have it
  std::vector<LogicalParameter> parameters;
};

// Precondition: a resolved config.
ModelDescription DescribeModel(const ModelConfig& config);

// The resolved config of a model as manifests have it. InvalidArgument if the manifest states no
// config, or one that this program does not know.
absl::StatusOr<ModelConfig> ConfigOf(const ModelProto& model);

// A model as config.json of Hugging Face describes it.
struct HuggingFaceDescription {
  ModelDescription model;
  const HuggingFaceFormat* format = nullptr;
  std::vector<std::string> order;  // of the parameters' names in transformers' modules

  // Whether files may hold a tensor of this name although it is computed and not learned.
  bool IsComputed(const std::string& name) const;
};

// InvalidArgument, in one sentence, for text that is not a config.json, a model_type that no
// architecture has, and settings that its architecture does not have. `tensor_count`: how many
// tensors the files have. A config of more layers than that is refused before anything of its size
// is allocated.
absl::StatusOr<HuggingFaceDescription> ReadHuggingFaceConfig(std::string_view config_json,
                                                             int64_t tensor_count);

// The inverse, for weights of this dtype. InvalidArgument where Hugging Face has no such model.
absl::StatusOr<std::string> WriteHuggingFaceConfig(const ModelProto& model, DType dtype);

// The model that the configuration of a ForeignFormat's framework describes, given as a JSON
// object. `tensor_count` and errors as in ReadHuggingFaceConfig().
absl::StatusOr<ModelDescription> ReadForeignConfig(std::string_view framework,
                                                   std::string_view config_json,
                                                   int64_t tensor_count);

// The inverse. InvalidArgument where the framework has no such model, or its files are not written.
absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework, const ModelProto& model);

// See ForeignFormat::parameters. Check the model's size against that of the files first
// (CheckModelFits() in foreign_layout.h). InvalidArgument as above.
absl::StatusOr<std::vector<ForeignParameter>> ForeignParameters(std::string_view framework,
                                                                const ModelProto& model);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_MODELS_H_
