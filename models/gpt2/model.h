#ifndef TESSERA_MODELS_GPT2_MODEL_H_
#define TESSERA_MODELS_GPT2_MODEL_H_

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/architecture.h"
#include "models/layers/model.h"
#include "models/layers/model_options.h"

namespace tessera::gpt2 {

// GPT-2 (Radford et al., 2019) as Hugging Face's GPT2LMHeadModel computes it. Parameters are
// allocated, not initialised. Preconditions: config resolved, stage set and in range.
std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend);

extern const Architecture kArchitecture;

// OpenAI's sizes, and a tiny one for tests.
std::span<const std::string_view> SizeNames();
// Precondition: one of SizeNames(). Sets the fields that define the size.
ModelConfig NamedSize(std::string_view name);
// Sets unset fields to GPT-2's defaults.
void FillDefaults(ModelConfig& config);
// InvalidArgument: one sentence about the first wrong field.
absl::Status Validate(const ModelConfig& config);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_MODEL_H_
