#ifndef TESSERA_CONVERT_LLMC_WRITE_H_
#define TESSERA_CONVERT_LLMC_WRITE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "convert/core/model_rules.h"
#include "convert/core/output.h"

namespace tessera::ckpt::convert {

struct LlmcOutputOptions {
  DType dtype = DTYPE_UNSPECIFIED;  // of the weights, F32 or BF16; unspecified: as they are saved
  bool weights_only = false;
};

// The files that llm.c would have written at the checkpoint's step: model_NNNNNNNN.bin and, with
// optimizer state, state_NNNNNNNN_00000.bin of one rank, then DONE_NNNNNNNN. The position in the
// data is left at the beginning: llm.c's is that of its own loader.
//
// Errors as PlanHuggingFace(); InvalidArgument for moments that are not F32.
absl::StatusOr<std::vector<OutputFile>> PlanLlmc(const Manifest& manifest, const ModelRules& rules,
                                                 const LlmcOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_LLMC_WRITE_H_
