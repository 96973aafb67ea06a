#ifndef TESSERA_CONVERT_CORE_TOKENIZER_FILES_H_
#define TESSERA_CONVERT_CORE_TOKENIZER_FILES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"

namespace tessera::ckpt::convert {

// A file that is written beside the tensors as it is.
struct PlainFile {
  std::string name;
  std::string contents;
};

// The files by which Hugging Face's programs find the tokenizer at `path` beside a model. Errors:
// those of reading it; InvalidArgument for one that is not the model's; Unimplemented for one that
// cannot be written so.
using TokenizerFiles = std::function<absl::StatusOr<std::vector<PlainFile>>(
    const std::string& path, const ModelConfig& model)>;

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_TOKENIZER_FILES_H_
