#ifndef TESSERA_TESTS_PERF_HUGGING_FACE_FOLDER_H_
#define TESSERA_TESTS_PERF_HUGGING_FACE_FOLDER_H_

// The weights of a model in Hugging Face's format: fp32, random, in one safetensors file.

#include <string>

#include "absl/status/status.h"

namespace tessera {

// Writes config.json and model.safetensors to a folder that exists. `model`: the fields of a
// ModelConfig in protobuf text format, all sizes included.
absl::Status WriteHuggingFaceFolder(const std::string& folder, const std::string& model);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_HUGGING_FACE_FOLDER_H_
