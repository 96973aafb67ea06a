#ifndef TESSERA_MODELS_GPT2_FOREIGN_H_
#define TESSERA_MODELS_GPT2_FOREIGN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "layout/box.h"
#include "layout/foreign_parameter.h"
#include "models/config/config.pb.h"
#include "models/foreign/format.h"

namespace tessera::gpt2 {

// A logical tensor of every layer.
struct LayerTensor {
  const char* name;  // in the layer
  Shape shape;
};

// Returns the tensors in the order of the modules. Each module has a weight and, if the model has
// biases, a bias.
std::vector<LayerTensor> LayerTensors(const ModelConfig& config);

// Returns the parameter of a framework that has matrices as [out, in].
ForeignParameter OutByIn(std::string name, std::string logical_name, const Shape& logical_shape);

// Returns all parameters under the names of Hugging Face, but with matrices as [out, in].
std::vector<ForeignParameter> OutByInParameters(const ModelConfig& config);

// Returns InvalidArgument for a model without biases, which most formats do not have.
absl::Status CheckHasBiases(const ModelConfig& config);

// Hugging Face's GPT-2. Linear weights are [in, out], as here (transformers' Conv1D).
extern const HuggingFaceFormat kHuggingFaceFormat;

// llama.cpp's architecture "gpt2". Linear weights are [out, in] there.
extern const ForeignFormat kGgufFormat;

// Modules of InfiniTrain's TransformerModel, which have the names of Hugging Face's, but matrices
// that are transposed.
extern const ForeignFormat kInfiniTrainFormat;

// Megatron-LM's GPT. Linear weights are [out, in]. The fused matrix of queries, keys and values has
// them head by head.
extern const ForeignFormat kMegatronFormat;

// nanoGPT's GPT, whose modules have the names of Hugging Face's, but matrices that are transposed.
// Its configuration is nanoGPT's `model_args`.
extern const ForeignFormat kNanoGptFormat;

// PaddleNLP's GPTForCausalLM. Linear weights are [in, out], as here. Queries, keys and values are
// matrices of their own, or one with those of each head next to each other.
extern const ForeignFormat kPaddleFormat;

// llm.c's GPT-2. Header: [2] positions, [3] vocabulary, [4] layers, [5] heads, [6] channels, [7]
// padded vocabulary. Weights are [out, in]; the head is tied and absent.
extern const LlmcFormat kLlmcFormat;

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_FOREIGN_H_
