#ifndef TESSERA_MODELS_LLAMA3_NAMES_H_
#define TESSERA_MODELS_LLAMA3_NAMES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::llama3 {

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

// Returns the full name of a tensor of a layer. `layer` is the global index.
inline std::string LayerName(int64_t layer, std::string_view tensor) {
  return "model.layers." + std::to_string(layer) + "." + std::string(tensor);
}

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_NAMES_H_
