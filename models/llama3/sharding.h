#ifndef TESSERA_MODELS_LLAMA3_SHARDING_H_
#define TESSERA_MODELS_LLAMA3_SHARDING_H_

// The boxes of logical tensors that a rank of a stage holds, and their memory layout. Legend: C
// hidden size, H query heads, K key/value heads, D head size, F MLP width, V vocabulary, Vp padded,
// S virtual shards.

#include <vector>

#include "models/config/config.pb.h"
#include "models/layers/decoder_layout.h"
#include "models/layers/model_options.h"
#include "models/layers/parameter.h"
#include "models/layers/vocabulary.h"

namespace tessera::llama3 {

struct AttentionParameters {
  Parameter* qkv;  // [(H+2K)D/S,C]: the shard's heads of q_proj, of k_proj, of v_proj
  Parameter* out;  // [C,HD/S]
};

struct MlpParameters {
  Parameter* gate_up;  // [2F/S,C]: the shard's rows of gate_proj, of up_proj
  Parameter* down;     // [C,F/S]
};

struct BlockParameters {
  Parameter* norm1;  // [C]
  std::vector<AttentionParameters> attention;
  Parameter* norm2;  // [C]
  std::vector<MlpParameters> mlp;
};

struct StageParameters {
  std::vector<VocabularyShard> table;  // [Vp/S,C]: on the first stage, and on the last when tied
  std::vector<BlockParameters> blocks;
  Parameter* final_norm = nullptr;    // [C]: last
  std::vector<VocabularyShard> head;  // [Vp/S,C]: last; the token embedding when tied
  DecoderLayout layout;
};

// Declares the parameters of this rank's virtual shards of the stage, in the order of the forward
// pass. Precondition: options.stage is set.
StageParameters DeclareParameters(const ModelConfig& config, const ModelOptions& options,
                                  ParameterSet& set);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_SHARDING_H_
