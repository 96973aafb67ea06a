#ifndef TESSERA_MODELS_LLAMA3_SHARDING_H_
#define TESSERA_MODELS_LLAMA3_SHARDING_H_

// The boxes of logical tensors that a rank of a stage holds, and their memory layout. Legend: C
// hidden size, H query heads, K key/value heads, D head size, F MLP width, V vocabulary, Vp padded,
// S virtual shards.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config/config.pb.h"
#include "models/layers/declare.h"
#include "models/layers/embedding.h"
#include "models/layers/model_options.h"
#include "models/layers/parameter.h"

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

// Logical tensors, with the names of Hugging Face's LlamaForCausalLM.
inline constexpr char kTokenEmbedding[] = "model.embed_tokens.weight";
inline constexpr char kFinalNorm[] = "model.norm.weight";
inline constexpr char kHead[] = "lm_head.weight";

inline constexpr char kNorm1[] = "input_layernorm.weight";
inline constexpr char kQuery[] = "self_attn.q_proj.weight";
inline constexpr char kKey[] = "self_attn.k_proj.weight";
inline constexpr char kValue[] = "self_attn.v_proj.weight";
inline constexpr char kOut[] = "self_attn.o_proj.weight";
inline constexpr char kNorm2[] = "post_attention_layernorm.weight";
inline constexpr char kGate[] = "mlp.gate_proj.weight";
inline constexpr char kUp[] = "mlp.up_proj.weight";
inline constexpr char kDown[] = "mlp.down_proj.weight";

// `layer` is the global index.
inline std::string LayerName(int64_t layer, std::string_view tensor) {
  return "model.layers." + std::to_string(layer) + "." + std::string(tensor);
}

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_SHARDING_H_
