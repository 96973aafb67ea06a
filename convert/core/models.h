#ifndef TESSERA_CONVERT_CORE_MODELS_H_
#define TESSERA_CONVERT_CORE_MODELS_H_

// Conversion between models in manifests and in the configurations of other frameworks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "layout/dtype.h"
#include "models/config/config.pb.h"
#include "models/foreign/format.h"
#include "models/model_config.h"

namespace tessera::ckpt::convert {

// A model, and the parameters that its architecture declares.
struct ModelDescription {
  ModelProto config;  // as in manifests
  std::vector<LogicalParameter> parameters;

  // Returns the parameter of this name. Precondition: there is one.
  const LogicalParameter& Find(std::string_view name) const {
    return *std::ranges::find(parameters, name, &LogicalParameter::name);
  }
};

// Describes a model. Precondition: a resolved config.
ModelDescription DescribeModel(const ModelConfig& config);

// Returns the resolved config of a manifest's model. InvalidArgument if the manifest states no
// config, or one that this program does not know.
absl::StatusOr<ModelConfig> ConfigOf(const ModelProto& model);

inline constexpr char kQuantized[] = "the weights are quantized (quantization_config)";

// A model described by a config.json of Hugging Face.
struct HuggingFaceDescription {
  ModelDescription model;
  const HuggingFaceFormat* format = nullptr;
  std::vector<std::string> order;  // of the parameters' names in transformers' modules
  std::string other_tensors;  // why the files may have other tensors, such as kQuantized, or empty

  // Returns whether files may hold a tensor of this name although it is computed and not learned.
  bool IsComputed(const std::string& name) const;
};

// Returns why these are not the names of a model's tensors although nothing is damaged: because of
// its config.json, if `described` is not null, or of peft or scales among them; "" if they may be.
// A class of models that is not known explains another head, and no tensor missing in a layer.
std::string WhyOtherTensors(const HuggingFaceDescription* described,
                            const std::vector<std::string>& names);

// Reads a config.json. `tensor_count` is the number of tensors in the files; a config of more
// layers is refused before anything of its size is allocated. Errors, in one sentence:
// Unimplemented for a model_type that no architecture has; InvalidArgument for text that is not a
// config.json, and settings that its architecture does not have.
absl::StatusOr<HuggingFaceDescription> ReadHuggingFaceConfig(std::string_view config_json,
                                                             int64_t tensor_count);

// Returns a config.json for weights of this dtype. InvalidArgument without such a model there.
absl::StatusOr<std::string> WriteHuggingFaceConfig(const ModelProto& model, DType dtype);

// Returns the model that the configuration of a ForeignFormat's framework, a JSON object,
// describes. `tensor_count` and errors as in ReadHuggingFaceConfig().
absl::StatusOr<ModelDescription> ReadForeignConfig(std::string_view framework,
                                                   std::string_view config_json,
                                                   int64_t tensor_count);

// Returns a configuration of the framework. InvalidArgument if the framework has no such model, or
// its files are not written.
absl::StatusOr<std::string> WriteForeignConfig(std::string_view framework, const ModelProto& model);

// Returns ForeignFormat::parameters of a model. First compare the model's size with the files'
// (CheckModelFits() in foreign_layout.h). InvalidArgument if the framework has no such model.
absl::StatusOr<std::vector<ForeignParameter>> ForeignParameters(std::string_view framework,
                                                                const ModelProto& model);

// A model, and its parameters in a framework's form.
class ForeignModel {
 public:
  // Reads the model that a ForeignFormat's configuration describes. InvalidArgument if the model is
  // unknown, or has more parameters than the files have tensors and bytes.
  static absl::StatusOr<ForeignModel> Read(std::string_view framework, std::string_view config_json,
                                           int64_t tensor_count, uint64_t file_bytes);

  const ModelDescription& description() const { return description_; }
  // Returns the parameters in the order of their declaration.
  const std::vector<ForeignParameter>& parameters() const { return parameters_; }
  // Returns the parameters that have this name, or have it as another name. Releases of a framework
  // may give one name to several parameters.
  std::vector<ForeignParameter*> Named(std::string_view name);
  // Returns the first parameter with this name; null if there is no such parameter.
  ForeignParameter* Find(std::string_view name);

 private:
  ModelDescription description_;
  std::vector<ForeignParameter> parameters_;
  std::multimap<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_MODELS_H_
