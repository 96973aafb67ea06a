#ifndef TESSERA_TRAINER_CONVERT_TOKENIZER_FILES_H_
#define TESSERA_TRAINER_CONVERT_TOKENIZER_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "convert/core/tokenizer_files.h"

namespace tessera {

// HuggingFaceFiles() of the tokenizer that LoadTokenizer(path) reads. InvalidArgument: it has more
// ids than the model.
absl::StatusOr<std::vector<ckpt::convert::PlainFile>> HuggingFaceTokenizerFiles(
    const std::string& path, const ckpt::ModelConfig& model);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONVERT_TOKENIZER_FILES_H_
