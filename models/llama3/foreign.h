#ifndef TESSERA_MODELS_LLAMA3_FOREIGN_H_
#define TESSERA_MODELS_LLAMA3_FOREIGN_H_

#include "absl/status/status.h"
#include "models/config/config.pb.h"
#include "models/foreign/format.h"

namespace tessera::llama3 {

// Returns InvalidArgument, naming the field, for scaled rotary frequencies with other settings than
// Llama 3.1's. `states_factor` says whether the format has a field for the factor.
absl::Status CheckRopeScaling(const ModelConfig& config, bool states_factor);

// Hugging Face's Llama. Linear weights are [out, in], and the rows of q and k are in the order of
// transformers' rotary embedding, as here.
extern const HuggingFaceFormat kHuggingFaceFormat;

// llama.cpp's architecture "llama", whose rotary embedding turns neighbouring rows of a head.
// There, the scaling of rotary frequencies is a tensor of factors, which determines the settings of
// Llama 3.1 and later. Keys of our own, which begin with "tessera.rope_scaling.", state any others.
extern const ForeignFormat kGgufFormat;

// Modules of InfiniTrain's TransformerModel: fused queries, keys and values, with rotary rows in
// Meta's order.
extern const ForeignFormat kInfiniTrainFormat;

// InternLM2 and Llama as InternEvo trains them: the configuration is the dict in model_config.pt.
// If its releases differ, a parameter is listed more than once under the same name, in other shapes
// or cut along another dim.
extern const ForeignFormat kInternEvoFormat;
// InternEvo's format if `qk_interleaved` is true: the rotary embedding turns neighbouring rows of a
// head.
extern const ForeignFormat kInternEvoPairedFormat;

// Megatron-LM's Llama. The fused matrix of queries, keys and values has them by query group; gate
// and up are the halves of one matrix. Tensor parallelism cuts each half.
extern const ForeignFormat kMegatronFormat;

// The names of Meta's own files and of torchtitan's, and params.json. Rows of queries and keys
// alternate between the halves of a head that the rotary embedding pairs.
extern const ForeignFormat kMetaFormat;
// The parameters of torchtitan as its modules have them, under Meta's names: gate and up stacked in
// one tensor, and queries, keys and values fused by query group, or, in releases before, not fused.
extern const ForeignFormat kTorchtitanFormat, kTorchtitanGateUpFormat, kTorchtitanQkvFormat;

// PaddleNLP's LlamaForCausalLM. Linear weights are [in, out]; the rows of q and k are in the same
// order as here. Queries, keys and values, and gate and up, are matrices of their own or fused.
// Layers of a pipeline are numbered from the embedding on, which is layer 0.
extern const ForeignFormat kPaddleFormat;

// llm.c's Llama-3. Header: [2] positions, [3] vocabulary, [4] layers, [5] heads, [6] key/value
// heads, [7] channels, [8] MLP multiplier, [9] multiple of, [10] norm epsilon, [11] rotary base,
// [12] scaled rope, [13] max batch, [14..15] version. Fields 8, 10 and 11 are real numbers:
// truncated to integers by llm.c, which are read, and fp32 bits in other programs, which are read
// and written. Weights are [out, in], with q, k and v stacked by rows, and the rows of q and k in
// the order of Meta's rotary embedding; the head is always present; no padding, no biases.
//
// A config that is read is untied, because the file does not record ties. If the reals are
// truncated, epsilon is Llama's 1e-5, and the multiplier is the one of 1, 1.3 (8B) and 1.5 (1B)
// that fits the length.
extern const LlmcFormat kLlmcFormat;

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_FOREIGN_H_
