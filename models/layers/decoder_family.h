#ifndef TESSERA_MODELS_LAYERS_DECODER_FAMILY_H_
#define TESSERA_MODELS_LAYERS_DECODER_FAMILY_H_

// The differences between families of decoders, as a table, and the functions that build any
// decoder from it. Legend: C hidden size, H query heads, K key/value heads, D head size, F MLP
// width, U columns before the activation, V vocabulary, Vp padded, P positions, S virtual shards.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compute/kernels/backend.h"
#include "models/config/config.pb.h"
#include "models/layers/attention.h"
#include "models/layers/declare.h"
#include "models/layers/embedding.h"
#include "models/layers/linear.h"
#include "models/layers/model.h"
#include "models/layers/parameter.h"

namespace tessera {

// Logical tensors of a norm or a linear layer; null if it has none.
struct TensorNames {
  const char* weight = nullptr;
  const char* bias = nullptr;
};

enum class Normalization { kLayerNorm, kRmsNorm };

// The table of one family. Constant, like the strings and arrays to which it refers.
struct DecoderFamily {
  Normalization normalization = Normalization::kLayerNorm;
  WeightLayout weight_layout = WeightLayout::kInOut;  // of linear layers
  Activation activation = Activation::kGelu;
  bool rotary = false;  // whether attention rotates q and k, as the config's fields say

  // Logical tensors outside the layers, and the name that keys the dropout's random numbers.
  const char* token_embedding = nullptr;     // [V,C]
  const char* position_embedding = nullptr;  // [P,C]; null for none
  const char* embedding_dropout = nullptr;
  TensorNames final_norm;      // [C]
  const char* head = nullptr;  // [V,C]; an alias of token_embedding if the config ties them

  // Returns the full name of the logical tensor `tensor` of a layer. `layer` is the global index.
  std::string (*layer_name)(int64_t layer, std::string_view tensor) = nullptr;
  // Names of logical tensors in a layer. A fused matrix is one tensor of equal sections, or several
  // tensors.
  TensorNames attention_norm;        // [C]
  std::span<const TensorNames> qkv;  // C to (H+2K)D: q, k and v
  const char* attention_dropout = nullptr;
  TensorNames projection;  // HD to C
  const char* projection_dropout = nullptr;
  TensorNames mlp_norm;             // [C]
  std::span<const TensorNames> up;  // C to U; with SwiGLU gate and up
  TensorNames down;                 // F to C
  const char* down_dropout = nullptr;

  // Whether torch's module of a layer has the norms after attention and MLP, and not each before.
  bool norms_come_last = false;
};

// A weight in memory and its bias; null for none.
struct WeightAndBias {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
};

// The parameters of a layer. Matrices are [in,out] or [out,in], by the family's weight_layout. A
// std::vector has an element for each virtual shard of this rank.
struct DecoderLayerParameters {
  WeightAndBias attention_norm;        // [C]
  std::vector<WeightAndBias> qkv;      // C to (H+2K)D/S: the shard's heads of q, of k, of v
  std::vector<Parameter*> projection;  // HD/S to C
  Parameter* projection_bias = nullptr;
  WeightAndBias mlp_norm;         // [C]
  std::vector<WeightAndBias> up;  // C to U/S: the shard's columns of each tensor
  std::vector<Parameter*> down;   // F/S to C
  Parameter* down_bias = nullptr;
};

struct DecoderParameters {
  std::vector<VocabularyShard> table;  // [Vp/S,C]: first stage
  Parameter* positions = nullptr;      // [P,C]: first stage
  std::vector<DecoderLayerParameters> layers;
  WeightAndBias final_norm;           // [C]: last stage
  std::vector<VocabularyShard> head;  // [Vp/S,C]: last stage; `table` if tied and on one stage
  DecoderLayout layout;
};

// Returns the names of all logical tensors of a model, in the order in which torch's module
// registers them; an alias is one of them.
std::vector<std::string> NamesInTorchOrder(const DecoderFamily& family, const ModelConfig& config);

// Declares the parameters of this rank's virtual shards of the stage, in the order of the forward
// pass. Configs are resolved, here and below. Precondition: options.stage is set and in range.
DecoderParameters DeclareDecoder(const DecoderFamily& family, const ModelConfig& config,
                                 const ModelOptions& options, ParameterSet& set);

// Makes the decoder, or the stage of it that the options name. Parameters are allocated, not
// initialised.
std::unique_ptr<Model> MakeDecoder(const DecoderFamily& family, const ModelConfig& config,
                                   const ModelOptions& options, Backend& backend);

// Makes the rotary embedding that the fields of the config describe, with or without the scaling of
// Llama 3.1.
std::shared_ptr<Rope> MakeRope(const ModelConfig& config, bool scaled);

// The functions of an Architecture whose models are decoders of this family.
template <const DecoderFamily& family>
struct DecoderOf {
  static std::unique_ptr<Model> Make(const ModelConfig& config, const ModelOptions& options,
                                     Backend& backend) {
    return MakeDecoder(family, config, options, backend);
  }
  static void Declare(const ModelConfig& config, const ModelOptions& options, ParameterSet& set) {
    DeclareDecoder(family, config, options, set);
  }
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LAYERS_DECODER_FAMILY_H_
