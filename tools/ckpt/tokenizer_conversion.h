#ifndef TESSERA_TOOLS_CKPT_TOKENIZER_CONVERSION_H_
#define TESSERA_TOOLS_CKPT_TOKENIZER_CONVERSION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.h"
#include "convert/write_foreign.h"

namespace tessera::ckpt {

// The files by which Hugging Face's programs find the tokenizer that LoadTokenizer(path) reads
// beside a model. InvalidArgument: it has more ids than the model; Unimplemented: it cannot be
// written so.
absl::StatusOr<std::vector<convert::PlainFile>> HuggingFaceTokenizerFiles(const std::string& path,
                                                                          const ModelProto& model);

}  // namespace tessera::ckpt

#endif  // TESSERA_TOOLS_CKPT_TOKENIZER_CONVERSION_H_
