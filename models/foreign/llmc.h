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

// One tensor in the body: [rows, columns], row-major; a vector is one row.
struct LlmcTensor {
  std::string name;  // of the logical tensor
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t real_rows = 0;    // the rest is padding: zeros in the file, nothing in the logical tensor
  bool transposed = false;  // the logical tensor is [columns, rows]
  // If not 0: the rows of each head of this size are in the order of Meta's rotary embedding, which
  // rotates pairs (2i, 2i+1), whereas the logical tensor has Hugging Face's pairs (i, i + D/2).
  int64_t interleaved_head_size = 0;
};

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
