#ifndef TESSERA_MODELS_LLAMA3_SHARDING_H_
#define TESSERA_MODELS_LLAMA3_SHARDING_H_

// Which boxes of which logical tensors a stage holds, and how they lie in memory.
// Legend: C hidden size, H query heads, K key/value heads, D head size, F MLP width, V vocabulary,
// Vp padded.

#include <vector>

#include "models/config.pb.h"
#include "models/layers/parameter.h"
#include "models/layers/stage.h"

namespace tessera::llama3 {

struct BlockParameters {
  Parameter* norm1;    // [C]
  Parameter* qkv;      // [(H+2K)D,C]: q_proj, k_proj, v_proj
  Parameter* out;      // [C,HD]
  Parameter* norm2;    // [C]
  Parameter* gate_up;  // [2F,C]: gate_proj, up_proj
  Parameter* down;     // [C,F]
};

struct StageParameters {
  Parameter* token_embedding = nullptr;  // [Vp,C]: on the first stage, and on the last when tied
  std::vector<BlockParameters> blocks;
  Parameter* final_norm = nullptr;  // [C]: last
  Parameter* head = nullptr;        // [Vp,C]: last; the token embedding when tied
};

// Declares the stage's parameters in model order. `stage.last_layer` is set.
StageParameters DeclareParameters(const ModelConfig& config, const StageLayers& stage,
                                  ParameterSet& set);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_SHARDING_H_
