#ifndef TESSERA_MODELS_GPT2_CONFIG_H_
#define TESSERA_MODELS_GPT2_CONFIG_H_

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "models/config/config.pb.h"

namespace tessera::gpt2 {

// Returns OpenAI's sizes, and a tiny one for tests.
std::span<const std::string_view> SizeNames();
// Returns a config with the fields that define the size. Precondition: one of SizeNames().
ModelConfig NamedSize(std::string_view name);
// Sets unset fields to GPT-2's defaults.
void FillDefaults(ModelConfig& config);
// Checks a config. InvalidArgument: one sentence about the first wrong field.
absl::Status Validate(const ModelConfig& config);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_CONFIG_H_
