#ifndef TESSERA_MODELS_GPT2_LLMC_H_
#define TESSERA_MODELS_GPT2_LLMC_H_

// llm.c's GPT-2 model files. Header: [0] 20240326, [1] 3 (fp32) or 5 (bf16), [2] positions,
// [3] vocabulary, [4] layers, [5] heads, [6] channels, [7] padded vocabulary. Body: each tensor
// over all layers, weights [out, in]; the head is tied and absent.

#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config.pb.h"
#include "models/llmc_files/file.h"
#include "models/llmc_files/tensors.h"

namespace tessera::gpt2 {

inline constexpr int32_t kLlmcMagic = 20240326;

// The config in the header, checked against the file's length.
absl::StatusOr<ModelConfig> ReadLlmcConfig(const LlmcReader& reader, int64_t element_bytes);
// InvalidArgument where the header format cannot represent the config.
absl::StatusOr<LlmcHeader> MakeLlmcHeader(const ModelConfig& config, int32_t version);
// The tensors in the file's order. `padded_vocab_size`: the file's.
std::vector<LlmcTensor> LlmcTensors(const ModelConfig& config, int64_t padded_vocab_size);

}  // namespace tessera::gpt2

#endif  // TESSERA_MODELS_GPT2_LLMC_H_
