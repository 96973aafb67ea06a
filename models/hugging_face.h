#ifndef TESSERA_MODELS_HUGGING_FACE_H_
#define TESSERA_MODELS_HUGGING_FACE_H_

// The config.json of models in Hugging Face's format.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/config/config.pb.h"
#include "models/hugging_face_files/format.h"

namespace tessera {

struct HuggingFaceModel {
  ModelConfig config;  // resolved
  const HuggingFaceFormat* format = nullptr;
};

// InvalidArgument: one sentence, for text that is no such file, a model_type that no architecture
// has, and settings that its architecture does not have.
absl::StatusOr<HuggingFaceModel> ReadHuggingFaceConfig(std::string_view config_json);

// The inverse; `dtype` is that of the weights, as Python names it: "float32". InvalidArgument where
// Hugging Face has no such architecture. Precondition: a resolved config.
absl::StatusOr<std::string> WriteHuggingFaceConfig(const ModelConfig& config,
                                                   std::string_view dtype);

}  // namespace tessera

#endif  // TESSERA_MODELS_HUGGING_FACE_H_
