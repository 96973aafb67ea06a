#ifndef TESSERA_MODELS_HUGGING_FACE_FILES_FORMAT_H_
#define TESSERA_MODELS_HUGGING_FACE_FILES_FORMAT_H_

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "models/config/config.pb.h"
#include "models/json_fields/json_fields.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What Hugging Face's files of an architecture are like. Logical tensors have Hugging Face's names,
// shapes and layouts, so the rest needs no rule.
struct HuggingFaceFormat {
  std::string_view model_type;  // in config.json: "gpt2"
  std::string_view class_name;  // of the model with its head: "GPT2LMHeadModel"
  // The beginning of the names of all tensors but the head. Files of the model without its head
  // leave it out.
  std::string_view prefix;
  // Patterns (base/glob.h) of tensors that files may hold although they are computed, not learned.
  std::span<const std::string_view> computed;
  // The tensors of a layer, without its prefix, in the order of transformers' modules. Empty: that
  // of the model.
  std::span<const std::string_view> layer_order;
  // Sets the fields of the config that config.json defines. InvalidArgument: one sentence, where it
  // asks for something that this architecture does not have.
  absl::Status (*read_config)(const JsonFields& fields, ModelConfig& config) = nullptr;
  // The inverse, for a resolved config. The model's type and class, its vocabulary and the like of
  // all architectures are set by the caller.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json& json) = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_HUGGING_FACE_FILES_FORMAT_H_
