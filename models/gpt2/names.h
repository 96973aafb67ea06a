#ifndef TESSERA_MODELS_GPT2_NAMES_H_
#define TESSERA_MODELS_GPT2_NAMES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::gpt2 {

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

// Returns the full name of a tensor of a layer. `layer` is the global index.
inline std::string LayerName(int64_t layer, std::string_view tensor) {
  return "transformer.h." + std::to_string(layer) + "." + std::string(tensor);
}

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_NAMES_H_
