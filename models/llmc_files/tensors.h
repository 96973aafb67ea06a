#ifndef TESSERA_MODELS_LLMC_FILES_TENSORS_H_
#define TESSERA_MODELS_LLMC_FILES_TENSORS_H_

// The body of llm.c model files: logical tensors one after the other, streamed in blocks of a few
// MiB between the file and the pieces of a ParameterSet.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/layers/parameter.h"
#include "models/llmc_files/file.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// How one logical tensor lies in the file: [rows, columns], row-major; a vector is one row.
struct LlmcTensor {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t real_rows = 0;    // the rest is padding: zeros in the file, nothing in the logical tensor
  bool transposed = false;  // the logical tensor is [columns, rows]
  // Not 0: the rows of each head of this size stand in the order of Meta's rotary embedding, which
  // turns pairs (2i, 2i+1), where the logical tensor has Hugging Face's pairs (i, i + D/2).
  int64_t interleaved_head_size = 0;
};

// Fills the pieces that bear the tensors' names; tensors that `parameters` does not have are passed
// over. `flat` has the layout of parameters.values(). Precondition: the file's length was checked.
absl::Status ImportLlmcTensors(const LlmcReader& reader, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               const ParameterSet& parameters, const TensorView& flat);

// InvalidArgument where `parameters` does not hold all of a tensor.
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
  // Whether this rank gives the values of a parameter: of several ranks with a copy, one does.
  std::function<bool(const Parameter&)> gives;
  // `values` becomes the sum of all ranks' values.
  std::function<absl::Status(std::span<float> values)> sum;
};

// The same for a model in parts, on one or several ranks. Every rank calls it; the one with a
// `writer` writes, others have null. Memory: one block of values. Wire: an all-reduce of the whole
// model in fp32.
absl::Status ExportLlmcTensors(LlmcWriter* writer, DType file_dtype,
                               const std::vector<LlmcTensor>& tensors,
                               std::span<const LlmcPart> parts, const LlmcRanks& ranks);

}  // namespace tessera

#endif  // TESSERA_MODELS_LLMC_FILES_TENSORS_H_
