#ifndef TESSERA_MODELS_LLAMA3_MODEL_H_
#define TESSERA_MODELS_LLAMA3_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/architecture.h"
#include "models/layers/model.h"
#include "models/layers/model_options.h"

namespace tessera::llama3 {

// Llama-3.1 (Grattafiori et al., 2024) as Hugging Face's LlamaForCausalLM computes it. Parameters
// are allocated, not initialised. Preconditions: config resolved, stage set and in
// range.
std::unique_ptr<Model> MakeModel(const ModelConfig& config, const ModelOptions& options,
                                 Backend& backend);

extern const Architecture kArchitecture;

// Llama-3.2 1B and 3B (tied), Llama-3.1 8B (untied), and a tiny one for tests.
std::span<const std::string_view> SizeNames();
// Precondition: one of SizeNames(). Sets the fields that define the size.
ModelConfig NamedSize(std::string_view name);
// Sets unset fields to Llama-3.1's defaults.
void FillDefaults(ModelConfig& config);
// InvalidArgument: one sentence about the first wrong field.
absl::Status Validate(const ModelConfig& config);

// Llama's rule: 2/3 of 4 * hidden_size, truncated, times the multiplier, truncated, rounded up to a
// multiple of multiple_of.
int64_t FfnHiddenSize(int64_t hidden_size, double multiplier, int64_t multiple_of);

// How many times slower Llama 3.1's scaling turns each of the pairs of rows of a head, whether the
// config uses it or not. Precondition: all settings of rotary embeddings are set.
std::vector<double> RopeFactors(const ModelConfig& config);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_MODEL_H_
