#ifndef TESSERA_MODELS_GPT2_SHARDING_H_
#define TESSERA_MODELS_GPT2_SHARDING_H_

// Which boxes of which logical tensors a stage holds, and how they lie in memory.
// Legend: C hidden size, F MLP width, V vocabulary, Vp padded, P positions.

#include <vector>

#include "models/config.pb.h"
#include "models/layers/parameter.h"
#include "models/layers/stage.h"

namespace tessera::gpt2 {

struct BlockParameters {
  Parameter *norm1_weight, *norm1_bias;            // [C]
  Parameter *qkv_weight, *qkv_bias;                // [C,3C], [3C]
  Parameter *projection_weight, *projection_bias;  // [C,C], [C]
  Parameter *norm2_weight, *norm2_bias;            // [C]
  Parameter *up_weight, *up_bias;                  // [C,F], [F]
  Parameter *down_weight, *down_bias;              // [F,C], [C]
};

struct StageParameters {
  Parameter* token_embedding = nullptr;     // [Vp,C]: on the first and on the last stage
  Parameter* position_embedding = nullptr;  // [P,C]: first
  std::vector<BlockParameters> blocks;
  Parameter* final_norm_weight = nullptr;  // [C]: last
  Parameter* final_norm_bias = nullptr;
};

// Declares the stage's parameters in model order. `stage.last_layer` is set.
StageParameters DeclareParameters(const ModelConfig& config, const StageLayers& stage,
                                  ParameterSet& set);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_SHARDING_H_
