#include "models/factory.h"

#include "absl/strings/str_cat.h"
#include "models/gpt2/model.h"
#include "models/llama3/model.h"
#include "models/model_config.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelConfig& config,
                                                 const ModelOptions& options, Backend& backend) {
  absl::StatusOr<ModelConfig> resolved = ResolveModelConfig(config);
  if (!resolved.ok()) return resolved.status();
  if (options.compute_dtype == DType::kI32) {
    return absl::InvalidArgumentError("compute_dtype is int32: it must be a floating type");
  }
  ModelOptions whole = options;
  StageLayers& stage = whole.stage;
  if (!stage.last_layer.has_value()) stage.last_layer = resolved->num_layers();
  if (stage.first_layer < 0 || stage.first_layer > *stage.last_layer ||
      *stage.last_layer > resolved->num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers [", stage.first_layer, ", ", *stage.last_layer,
                     ") of a stage: num_layers is ", resolved->num_layers()));
  }
  const auto make =
      resolved->architecture() == ModelConfig::GPT2 ? &gpt2::MakeModel : &llama3::MakeModel;
  return make(*resolved, whole, backend);
}

}  // namespace tessera
