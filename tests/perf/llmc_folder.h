#ifndef TESSERA_TESTS_PERF_LLMC_FOLDER_H_
#define TESSERA_TESTS_PERF_LLMC_FOLDER_H_

// A training state in llm.c's format, which is the simplest one to write: fp32 weights and two
// moments of each, of any size of GPT-2.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tessera {

struct LlmcFolderOptions {
  std::string model;           // the fields of a GPT-2 in protobuf text format
  bool random_values = false;  // else zeros, as holes of the files
};

// Writes the files of step 7 to a folder that exists.
absl::Status WriteLlmcFolder(const std::string& folder, const LlmcFolderOptions& options);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_LLMC_FOLDER_H_
