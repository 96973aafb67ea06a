#ifndef TESSERA_MODELS_LLMC_H_
#define TESSERA_MODELS_LLMC_H_

// Model files of llm.c (https://github.com/karpathy/llm.c) and of InfiniTrain, which uses the same
// format: GPT-2 (versions 3 and 5) and Llama-3. Little-endian, 1024 bytes of header, then every
// tensor over all layers at once.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute/tensor/tensor.h"
#include "models/config/config.pb.h"
#include "models/layers/parameter.h"
#include "models/llmc_files/file.h"
#include "models/llmc_files/info.h"
#include "models/llmc_files/tensors.h"

namespace tessera {

// Reads the header and checks it against the file's length. DataLoss for bytes that cannot be such
// a file (with expected and found values), NotFound for a missing file. Allocates nothing in
// proportion to numbers in the header.
absl::StatusOr<LlmcFileInfo> ReadLlmcInfo(const std::string& path);

// The same from the first kLlmcHeaderBytes of a file that the caller reads, and its size.
absl::StatusOr<LlmcFileInfo> ParseLlmcInfo(const std::string& path,
                                           std::span<const std::byte> header, int64_t size_bytes);

// The header of a file that ExportLlmc() would write. InvalidArgument where the format cannot
// represent the config, which is resolved.
absl::StatusOr<LlmcHeader> MakeLlmcHeader(const ModelConfig& config,
                                          const LlmcFileOptions& options);

// The tensors in the body of a file with this header, in its order.
std::vector<LlmcTensor> LlmcTensors(const LlmcFileInfo& info);

// Fills the pieces of `parameters` (the whole model, or the shards of a rank or stage) from the
// file. `flat` is parameters.values(), or another floating buffer with the same layout, such as
// fp32 master weights. Padding is left unchanged. FailedPrecondition when the file holds another
// model than `config` (resolved), listing every field that differs with both values; nothing has
// been written then. DataLoss as above. Memory: a few MiB.
absl::Status ImportLlmc(const std::string& path, const ModelConfig& config,
                        const ParameterSet& parameters, const TensorView& flat);

// Writes the whole model (unsharded parameters) through a temporary name. Values are rounded to
// options.dtype.
absl::Status ExportLlmc(const std::string& path, const ModelConfig& config,
                        const LlmcFileOptions& options, const ParameterSet& parameters,
                        const TensorView& flat);

// The same for a model that several ranks hold together, each some parts of it. Every rank calls
// it; the one with `writes` creates the file, which is complete when the call returns.
absl::Status ExportLlmc(const std::string& path, const ModelConfig& config,
                        const LlmcFileOptions& options, std::span<const LlmcPart> parts,
                        const LlmcRanks& ranks, bool writes);

// Checks that ExportLlmc() will be able to write: that the format can represent the model, and that
// the file can be created (creates and removes the temporary file).
absl::Status CheckLlmcExport(const std::string& path, const ModelConfig& config,
                             const LlmcFileOptions& options);

}  // namespace tessera

#endif  // TESSERA_MODELS_LLMC_H_
