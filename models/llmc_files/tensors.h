#ifndef TESSERA_MODELS_LLMC_FILES_TENSORS_H_
#define TESSERA_MODELS_LLMC_FILES_TENSORS_H_

// The body of llm.c model files: consecutive logical tensors, streamed in blocks of a few MiB
// between the file and the pieces of a ParameterSet.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compute/tensor/tensor.h"
#include "models/layers/parameter.h"
#include "models/llmc_files/file.h"

namespace tessera {

// The layout of one logical tensor in the file: [rows, columns], row-major; a vector is one row.
struct LlmcTensor {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t real_rows = 0;    // the rest is padding: zeros in the file, nothing in the logical tensor
  bool transposed = false;  // the logical tensor is [columns, rows]
  // If not 0: the rows of each head of this size are in the order of Meta's rotary embedding, which
  // rotates pairs (2i, 2i+1), whereas the logical tensor has Hugging Face's pairs (i, i + D/2).
  int64_t interleaved_head_size = 0;
};

// Fills the pieces with the tensors' names; skips tensors that `parameters` does not have. `flat`
// has the layout of parameters.values(). Precondition: the file's length was checked.
absl::Status ImportLlmcTensors(const LlmcReader& reader, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               const ParameterSet& parameters, const TensorView& flat);

// InvalidArgument if `parameters` does not hold a tensor completely.
absl::Status ExportLlmcTensors(LlmcWriter& writer, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               const ParameterSet& parameters, const TensorView& flat);

// Parameters of one pipeline chunk, with their values as above.
struct LlmcPart {
  const ParameterSet* parameters = nullptr;
  TensorView flat;
};

// Ranks that hold a model together.
struct LlmcRanks {
  // Whether this rank contributes the values of a parameter: exactly one of the ranks with a copy
  // does.
  std::function<bool(const Parameter&)> gives;
  // `values` becomes the sum of all ranks' values.
  std::function<absl::Status(std::span<float> values)> sum;
};

// The same for a model in parts, on one or several ranks. Every rank calls it; the one with a
// `writer` writes, the others pass null. Memory: one block of values. Wire: an all-reduce of the
// whole model in fp32.
absl::Status ExportLlmcTensors(LlmcWriter* writer, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               std::span<const LlmcPart> parts, const LlmcRanks& ranks);

}  // namespace tessera

#endif  // TESSERA_MODELS_LLMC_FILES_TENSORS_H_
