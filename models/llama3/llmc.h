#ifndef TESSERA_MODELS_LLAMA3_LLMC_H_
#define TESSERA_MODELS_LLAMA3_LLMC_H_

// llm.c's Llama-3 model files. Header: [0] 20240803, [1] 3 (fp32) or 5 (bf16), [2] positions, [3]
// vocabulary, [4] layers, [5] heads, [6] key/value heads, [7] channels, [8] MLP multiplier, [9]
// multiple of, [10] norm epsilon, [11] rotary base, [12] scaled rope, [13] max batch, [14..15]
// version. Fields 8, 10 and 11 are real numbers: truncated to integers by llm.c, fp32 bits in other
// programs. Body: each tensor over all layers, weights [out, in], with q, k and v stacked by rows,
// and the rows of q and k in the order of Meta's rotary embedding; the head is always present; no
// padding, no biases.

#include <vector>

#include "absl/status/statusor.h"
#include "models/llmc_files/file.h"
#include "models/llmc_files/info.h"
#include "models/llmc_files/tensors.h"

namespace tessera::llama3 {

inline constexpr int32_t kLlmcMagic = 20240803;

// The config in the header, checked against the file's length. The config is untied, because the
// file does not record it. Truncated reals: epsilon is Llama's 1e-5, and the multiplier is the one
// of 1, 1.3 (8B) and 1.5 (1B) that fits the length. `options.dtype` is set by the caller.
absl::StatusOr<LlmcFileInfo> ReadLlmcInfo(const LlmcReader& reader, DType dtype);
// InvalidArgument where the header format cannot represent the config.
absl::StatusOr<LlmcHeader> MakeLlmcHeader(const ModelConfig& config, int32_t version,
                                          const LlmcFileOptions& options);
// In the file's order; the last one is the head.
std::vector<LlmcTensor> LlmcTensors(const ModelConfig& config);

}  // namespace tessera::llama3

#endif  // TESSERA_MODELS_LLAMA3_LLMC_H_
