#ifndef TESSERA_MODELS_FOREIGN_MEGATRON_ARGS_H_
#define TESSERA_MODELS_FOREIGN_MEGATRON_ARGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/foreign_parameter.h"
#include "models/config/config.pb.h"
#include "models/foreign/json_fields.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The arguments of a training run that Megatron-LM stores with its checkpoints.

// Returns the type of position embedding, such as "learned_absolute" or "rope". Older releases have
// an argument of its own for "rope".
std::string MegatronPositionEmbedding(const JsonFields& args);

// Sets the sizes that all decoders have. Refuses experts, norms of queries and keys, norms whose
// weights are stored less 1, heads whose size is not their share of hidden_size, and arguments
// without a parameter that change what the model computes. The size of the vocabulary is the padded
// one if its own, which depends on Megatron-LM's tokenizer, is missing.
absl::Status ReadMegatronSizes(const JsonFields& args, ModelConfig& config);
void WriteMegatronSizes(const ModelConfig& config, nlohmann::ordered_json& args);

// Adds the parameters of all layers, each by its number ("decoder.layers.3.mlp.linear_fc1.weight")
// and all as a stack ("decoder.layers.mlp.linear_fc1.weight"), since files have either.
// `parameters_of` returns the parameters of one layer, in the same order for each.
void AddMegatronLayers(
    int64_t layers,
    const std::function<std::vector<ForeignParameter>(const std::string& prefix, int64_t layer)>&
        parameters_of,
    std::vector<ForeignParameter>& parameters);

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_MEGATRON_ARGS_H_
