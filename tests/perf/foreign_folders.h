#ifndef TESSERA_TESTS_PERF_FOREIGN_FOLDERS_H_
#define TESSERA_TESTS_PERF_FOREIGN_FOLDERS_H_

// Checkpoints of other frameworks, of any size, in their simplest formats. A model is given as the
// fields of a ModelConfig in protobuf text format, all sizes included.

#include <string>

#include "absl/status/status.h"

namespace tessera {

// Writes the training state of a GPT-2 at step 7 in llm.c's format to a folder that exists: fp32
// weights and two moments of each, random or zeros, which are holes of the files.
absl::Status WriteLlmcFolder(const std::string& folder, const std::string& model,
                             bool random_values);

// Writes the weights of a model in Hugging Face's format to a folder that exists: fp32, random, in
// one safetensors file.
absl::Status WriteHuggingFaceFolder(const std::string& folder, const std::string& model);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_FOREIGN_FOLDERS_H_
