#ifndef TESSERA_MODELS_FOREIGN_LLMC_H_
#define TESSERA_MODELS_FOREIGN_LLMC_H_

// Model files of llm.c (https://github.com/karpathy/llm.c) and of InfiniTrain: a header of 256
// little-endian int32, then every tensor over all layers at once, in fp32 (version 3) or bf16 (5).

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tessera {

using LlmcHeader = std::array<int32_t, 256>;
inline constexpr int64_t kLlmcHeaderBytes = 1024;

// The header and the length of a model file.
struct LlmcFile {
  std::string path;  // for messages
  LlmcHeader header = {};
  int64_t size_bytes = 0;
  int64_t element_bytes = 0;

  // DataLoss that names the file.
  absl::Status Corrupt(const std::string& what) const;
  // OK if the file is exactly as long as header and elements are.
  absl::Status CheckLength(__int128 elements) const;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_FOREIGN_LLMC_H_
