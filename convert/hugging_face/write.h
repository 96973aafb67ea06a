#ifndef TESSERA_CONVERT_HUGGING_FACE_WRITE_H_
#define TESSERA_CONVERT_HUGGING_FACE_WRITE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "convert/core/model_rules.h"
#include "convert/core/output.h"

namespace tessera::ckpt::convert {

struct HuggingFaceOutputOptions {
  DType dtype = DTYPE_UNSPECIFIED;  // of the weights; unspecified: as they are saved
  // Of one safetensors file, unless a single tensor is larger.
  uint64_t max_file_bytes = 5'000'000'000;
};

// The files of a model in Hugging Face's format: config.json and model.safetensors or, where that
// would be too large, several with their index. Tied parameters are written once, and optimizer
// state is not.
//
// InvalidArgument: a model that the rules do not know, or that Hugging Face does not.
// FailedPrecondition, listing them: parameters that the checkpoint does not have, and weights that
// are no parameters.
absl::StatusOr<std::vector<OutputFile>> PlanHuggingFace(const Manifest& manifest,
                                                        const ModelRules& rules,
                                                        const HuggingFaceOutputOptions& options);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_HUGGING_FACE_WRITE_H_
