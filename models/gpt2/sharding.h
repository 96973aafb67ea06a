#ifndef TESSERA_MODELS_GPT2_SHARDING_H_
#define TESSERA_MODELS_GPT2_SHARDING_H_

// The boxes of logical tensors that a rank of a stage holds, and their memory layout. Legend: C
// hidden size, F MLP width, V vocabulary, Vp padded, P positions, S virtual shards.

#include <vector>

#include "models/config/config.pb.h"
#include "models/layers/decoder_layout.h"
#include "models/layers/model_options.h"
#include "models/layers/parameter.h"
#include "models/layers/vocabulary.h"

namespace tessera::gpt2 {

struct AttentionParameters {
  Parameter *qkv_weight, *qkv_bias;  // [C,3C/S], [3C/S]: the shard's heads of q, of k, of v
  Parameter* projection_weight;      // [C/S,C]
};

struct MlpParameters {
  Parameter *up_weight, *up_bias;  // [C,F/S], [F/S]
  Parameter* down_weight;          // [F/S,C]
};

struct BlockParameters {
  Parameter *norm1_weight, *norm1_bias;  // [C]
  std::vector<AttentionParameters> attention;
  Parameter* projection_bias;            // [C]
  Parameter *norm2_weight, *norm2_bias;  // [C]
  std::vector<MlpParameters> mlp;
  Parameter* down_bias;  // [C]
};

struct StageParameters {
  std::vector<VocabularyShard> table;       // [Vp/S,C]: on the first and on the last stage
  Parameter* position_embedding = nullptr;  // [P,C]: first
  std::vector<BlockParameters> blocks;
  Parameter* final_norm_weight = nullptr;  // [C]: last
  Parameter* final_norm_bias = nullptr;
  DecoderLayout layout;
};

// Declares the parameters of this rank's virtual shards of the stage, in the order of the forward
// pass. Precondition: options.stage is set.
StageParameters DeclareParameters(const ModelConfig& config, const ModelOptions& options,
                                  ParameterSet& set);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_SHARDING_H_
