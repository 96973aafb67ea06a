#ifndef TESSERA_CONVERT_FORMATS_GGUF_GGUF_H_
#define TESSERA_CONVERT_FORMATS_GGUF_GGUF_H_

// Files of llama.cpp, which Ollama and others run, too: weights, metadata and tokenizer in one.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/output_file.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Returns the GGUF file of a place: `file` in the storage or, if it is empty, the only one whose
// name ends in .gguf. Empty if no file is a GGUF file; InvalidArgument, listing them, for several.
absl::StatusOr<std::string> FindGguf(Storage& storage, std::string_view file);

// Runs the index pass over the file's header, and over the factors of its rotary frequencies. Does
// not read the tokenizer. Errors: those of ReadGgufHeader(), with the file. InvalidArgument for an
// unknown model, a tensor that the model does not have, and one of several files of a model.
// DataLoss, naming them, for tensors that are missing or misshapen.
absl::StatusOr<ForeignCheckpoint> ReadGguf(Storage& storage, const std::string& file);

// Plans one file, as llama.cpp's converter writes it for weights of F32, F16 or BF16: vectors and
// embeddings of positions are F32, whatever the dtype of the other weights. The file includes a
// given tokenizer, with as many tokens as the model has ids.
//
// InvalidArgument: a model that llama.cpp does not have, or another dtype. Errors also:
// DescribeForGguf(), and as PlanHuggingFace().
absl::StatusOr<std::vector<OutputFile>> PlanGguf(const Manifest& manifest,
                                                 const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_GGUF_GGUF_H_
