#ifndef TESSERA_CONVERT_FORMATS_LLMC_LLMC_H_
#define TESSERA_CONVERT_FORMATS_LLMC_LLMC_H_

// Model files and optimizer states of llm.c.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/models.h"
#include "convert/core/output_file.h"
#include "layout/dtype.h"
#include "layout/foreign_parameter.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kLlmc = "llmc";

// The first numbers of an optimizer state.
inline constexpr int32_t kStateMagic = 20240527;
inline constexpr int32_t kStateVersion = 1;

// A model file, described by its header.
struct LlmcDescription {
  ModelDescription model;
  DType dtype = DType::kUnspecified;
  // The tensors in the file's order, with their names there; a tied one is a copy of the model's
  // parameter. ZeRO ranks of llm.c divide each tensor.
  std::vector<ForeignParameter> tensors;
};

// Returns the model in a file with this header, and sets the file's `element_bytes`. If `model`,
// which may be null, has the head tied to the embedding, which no header records, the file's two
// matrices are copies of one. DataLoss names the file.
absl::StatusOr<LlmcDescription> ReadLlmcHeader(LlmcFile& file, const ModelProto* model);

// A model file of llm.c to write.
struct LlmcOutput {
  std::string header;
  LlmcDescription description;
};
// Returns the model file of a manifest's model, with weights of this dtype: F32 or BF16.
// InvalidArgument if llm.c has no such model.
absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ModelProto& model, DType dtype);

// Returns the model file of llm.c of a place: `file` in the storage or, if it is empty, the
// model_NNNNNNNN.bin of the newest step (with DONE_NNNNNNNN, if any step has one). Empty if the
// storage has no such file, or it does not begin like a model file.
absl::StatusOr<std::string> FindLlmcModel(Storage& storage, std::string_view file);

// Runs the index pass over that model file. If it is called model_NNNNNNNN.bin, the pass includes
// the optimizer states of its step: state_NNNNNNNN_RRRRR.bin of every rank, each with the whole
// state or, with ZeRO, the rank's part. Copies on several ranks are copies of one tensor. `model`
// as in ReadLlmcHeader(). A state whose first file is missing is an error only with `of_folder`:
// the folder was asked for, not this file.
//
// Errors: NotFound (a rank's file); DataLoss, naming the file.
absl::StatusOr<ForeignCheckpoint> ReadLlmc(Storage& storage, const std::string& model_file,
                                           const ModelProto* model, bool of_folder = false);

// Plans the files that llm.c would write at the checkpoint's step: model_NNNNNNNN.bin and, with
// optimizer state, state_NNNNNNNN_00000.bin of one rank, then DONE_NNNNNNNN. The position in the
// data is the beginning, since llm.c counts it in the way of its own loader.
//
// Errors as PlanHuggingFace(); InvalidArgument for moments that are not F32.
absl::StatusOr<std::vector<OutputFile>> PlanLlmc(const Manifest& manifest,
                                                 const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_LLMC_LLMC_H_
