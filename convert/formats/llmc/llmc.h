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

// A model file, as its header describes it.
struct LlmcDescription {
  ModelDescription model;
  DType dtype = DType::kUnspecified;
  // In the file's order, each with its own name there; one that is tied is a copy of the model's
  // parameter. ZeRO ranks of llm.c divide each of them.
  std::vector<ForeignParameter> tensors;
};

// The model in a file with this header, whose `element_bytes` this sets. DataLoss naming the file.
// `model` may be null; where it has the head tied to the embedding, as no header says, the file's
// two matrices are copies of one.
absl::StatusOr<LlmcDescription> ReadLlmcHeader(LlmcFile& file, const ModelProto* model);

// A model file of llm.c that is to be written.
struct LlmcOutput {
  std::string header;
  LlmcDescription description;
};
// The model file of a model as manifests describe it, with weights of this dtype: F32 or BF16.
// InvalidArgument where llm.c has no such model.
absl::StatusOr<LlmcOutput> WriteLlmcHeader(const ModelProto& model, DType dtype);

// The model file of llm.c that a place means: `file` in the storage or, where that is empty, the
// model_NNNNNNNN.bin of the newest step, with DONE_NNNNNNNN where any step has one. Empty if
// the storage has no such file, or it does not begin as a model file does.
absl::StatusOr<std::string> FindLlmcModel(Storage& storage, std::string_view file);

// The index pass over that model file and, where it is called model_NNNNNNNN.bin, the optimizer
// states of its step: state_NNNNNNNN_RRRRR.bin of every rank, each with all of it or, with ZeRO,
// its part. Copies on several ranks are copies of one tensor. `model` as above.
//
// Errors: NotFound (a rank's file), DataLoss naming the file.
absl::StatusOr<ForeignCheckpoint> ReadLlmc(Storage& storage, const std::string& model_file,
                                           const ModelProto* model);

// The files that llm.c would have written at the checkpoint's step: model_NNNNNNNN.bin and, with
// optimizer state, state_NNNNNNNN_00000.bin of one rank, then DONE_NNNNNNNN. The position in the
// data is left at the beginning, since llm.c counts it as its own loader does.
//
// Errors as PlanHuggingFace(); InvalidArgument for moments that are not F32.
absl::StatusOr<std::vector<OutputFile>> PlanLlmc(const Manifest& manifest,
                                                 const PlanOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_LLMC_LLMC_H_
