#include "tools/ckpt/tokenizer_conversion.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/config/config.pb.h"
#include "tokenizer/files/hugging_face_files.h"
#include "tokenizer/tokenizer.h"
#include "trainer/data/load_tokenizer.h"

namespace tessera::ckpt {

absl::StatusOr<std::vector<convert::PlainFile>> HuggingFaceTokenizerFiles(const std::string& path,
                                                                          const ModelProto& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(model.text(), &config)) {
    return absl::InvalidArgumentError("the checkpoint does not say how many ids its model has");
  }
  if (tokenizer->vocab_size() > config.vocab_size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", tokenizer->vocab_size(),
                                                   " ids, but the model only ", config.vocab_size(),
                                                   ": it is another one's"));
  }
  absl::StatusOr<std::vector<TokenizerFile>> files = HuggingFaceFiles(*tokenizer);
  if (!files.ok()) {
    return absl::Status(files.status().code(), absl::StrCat(path, ": ", files.status().message()));
  }
  std::vector<convert::PlainFile> result;
  for (TokenizerFile& file : *files) {
    result.push_back({std::move(file.name), std::move(file.contents)});
  }
  return result;
}

}  // namespace tessera::ckpt
