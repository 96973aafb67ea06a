#ifndef TESSERA_CONVERT_HUGGING_FACE_READ_H_
#define TESSERA_CONVERT_HUGGING_FACE_READ_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/model_rules.h"

namespace tessera::ckpt::convert {

inline constexpr std::string_view kHuggingFace = "hf";

// Whether a folder has the files of a model in Hugging Face's format: config.json and
// model.safetensors, or its index. NotFound for a folder that does not exist.
absl::StatusOr<bool> IsHuggingFace(Storage& storage, std::string_view folder);

// The index pass over such a folder: config.json, the index, and the headers of all files.
//
// With rules, the tensors are those of the model that config.json describes, each with its shape
// checked; tensors that are computed and not learned are left out; a second copy of tied parameters
// is a copy of the first. Without rules, the tensors are those of the files under their own names.
//
// Errors: NotFound (files that the index names), DataLoss naming file and tensor: headers, tensors
// in other files than the index says, missing, unknown and misshapen tensors, all of them listed.
absl::StatusOr<ForeignCheckpoint> ReadHuggingFace(Storage& storage, std::string_view folder,
                                                  const ModelRules* rules);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_HUGGING_FACE_READ_H_
