#ifndef TESSERA_MODELS_LLAMA3_CONFIG_H_
#define TESSERA_MODELS_LLAMA3_CONFIG_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "models/config/config.pb.h"

namespace tessera::llama3 {

// Returns Llama-3.2 1B and 3B (tied), Llama-3.1 8B (untied), and a tiny size for tests.
std::span<const std::string_view> SizeNames();
// Returns a config with the fields that define the size. Precondition: one of SizeNames().
ModelConfig NamedSize(std::string_view name);
// Sets unset fields to Llama-3.1's defaults.
void FillDefaults(ModelConfig& config);
// Checks a config. InvalidArgument: one sentence about the first wrong field.
absl::Status Validate(const ModelConfig& config);

// Returns the width of the MLP by Llama's rule: 2/3 of 4 * hidden_size, truncated, times the
// multiplier, truncated, rounded up to a multiple of multiple_of.
int64_t FfnHiddenSize(int64_t hidden_size, double multiplier, int64_t multiple_of);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_CONFIG_H_
