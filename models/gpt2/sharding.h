#ifndef TESSERA_MODELS_GPT2_SHARDING_H_
#define TESSERA_MODELS_GPT2_SHARDING_H_

// The boxes of logical tensors that a rank of a stage holds, and their memory layout. Legend: C
// hidden size, F MLP width, V vocabulary, Vp padded, P positions, S virtual shards.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config/config.pb.h"
#include "models/layers/declare.h"
#include "models/layers/embedding.h"
#include "models/layers/model_options.h"
#include "models/layers/parameter.h"

namespace tessera::gpt2 {

// Whether norms and linear layers have biases. What has none is null below.
inline bool HasBiases(const ModelConfig& config) {
  return !config.has_use_biases() || config.use_biases();
}

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

// Logical tensors, with the names of Hugging Face's GPT2LMHeadModel.
inline constexpr char kTokenEmbedding[] = "transformer.wte.weight";
inline constexpr char kPositionEmbedding[] = "transformer.wpe.weight";
inline constexpr char kFinalNormWeight[] = "transformer.ln_f.weight";
inline constexpr char kFinalNormBias[] = "transformer.ln_f.bias";
inline constexpr char kHead[] = "lm_head.weight";  // tied to the token embedding

inline constexpr char kNorm1Weight[] = "ln_1.weight";
inline constexpr char kNorm1Bias[] = "ln_1.bias";
inline constexpr char kQkvWeight[] = "attn.c_attn.weight";
inline constexpr char kQkvBias[] = "attn.c_attn.bias";
inline constexpr char kProjectionWeight[] = "attn.c_proj.weight";
inline constexpr char kProjectionBias[] = "attn.c_proj.bias";
inline constexpr char kNorm2Weight[] = "ln_2.weight";
inline constexpr char kNorm2Bias[] = "ln_2.bias";
inline constexpr char kUpWeight[] = "mlp.c_fc.weight";
inline constexpr char kUpBias[] = "mlp.c_fc.bias";
inline constexpr char kDownWeight[] = "mlp.c_proj.weight";
inline constexpr char kDownBias[] = "mlp.c_proj.bias";

// `layer` is the global index.
inline std::string LayerName(int64_t layer, std::string_view tensor) {
  return "transformer.h." + std::to_string(layer) + "." + std::string(tensor);
}

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_SHARDING_H_
