#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "checkpoint/format/safetensors.h"
#include "convert/core/output.h"
#include "convert/core/reading.h"
#include "convert/core/saved_weights.h"
#include "convert/formats/hugging_face/hugging_face.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"
#include "tokenizer/files/hugging_face_files.h"

namespace tessera::ckpt::convert {
namespace {

// Divides the weights into files, each of as many consecutive ones as fit.
std::vector<SafetensorsHeader> Divide(const std::vector<SafetensorsEntry>& weights,
                                      uint64_t max_file_bytes) {
  std::vector<SafetensorsHeader> files(1);
  uint64_t bytes = 0;
  for (const SafetensorsEntry& weight : weights) {
    const uint64_t more = ByteCount(weight.shape, weight.dtype);
    if (!files.back().entries.empty() && bytes + more > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().entries.push_back(weight);
    bytes += more;
  }
  return files;
}

absl::StatusOr<OutputFile> PlanFile(std::string name, SafetensorsHeader header) {
  header.metadata["format"] = "pt";  // transformers refuses files without it
  OutputFile file = {.name = std::move(name)};
  TESSERA_ASSIGN_OR_RETURN(file.header, BuildSafetensorsHeader(header));
  file.size_bytes = header.file_size_bytes;
  // The header has them in another order than the data.
  std::ranges::sort(header.entries, {}, &SafetensorsEntry::file_offset);
  for (const SafetensorsEntry& entry : header.entries) {
    file.tensors.push_back({.name = entry.key,
                            .source_name = entry.key,
                            .dtype = entry.dtype,
                            .shape = entry.shape,
                            .offset_bytes = entry.file_offset,
                            .elements = ElementCount(entry.shape),
                            .pieces = RowMajorPieces(entry.shape, entry.dtype)});
  }
  return file;
}

OutputFile Index(const std::vector<OutputFile>& files, uint64_t total_bytes) {
  nlohmann::ordered_json json;
  json["metadata"]["total_size"] = total_bytes;
  for (const OutputFile& file : files) {
    for (const OutputTensor& tensor : file.tensors) json["weight_map"][tensor.name] = file.name;
  }
  return PlainOutputFile("model.safetensors.index.json", json.dump(2) + "\n");
}

}  // namespace

absl::StatusOr<std::vector<OutputFile>> PlanHuggingFace(const Manifest& manifest,
                                                        const PlanOptions& options) {
  // What config.json says of the model is what its readers will look for.
  TESSERA_ASSIGN_OR_RETURN(const std::string any_config,
                           WriteHuggingFaceConfig(manifest.model(), DType::kF32));
  TESSERA_ASSIGN_OR_RETURN(const HuggingFaceDescription description,
                           ReadHuggingFaceConfig(any_config, std::numeric_limits<int64_t>::max()));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedWeight> saved,
                           FindWeights(manifest, description.model));
  std::vector<SafetensorsEntry> weights;
  uint64_t total_bytes = 0;
  for (const SavedWeight& weight : saved) {
    const DType dtype = options.dtype != DType::kUnspecified ? options.dtype : weight.dtype;
    weights.push_back(
        {.key = weight.parameter->name, .dtype = dtype, .shape = weight.parameter->shape});
    total_bytes += ByteCount(weight.parameter->shape, dtype);
  }
  const std::vector<SafetensorsHeader> parts = Divide(weights, options.max_file_bytes);
  std::vector<OutputFile> files;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name =
        parts.size() == 1 ? "model.safetensors"
                          : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, parts.size());
    TESSERA_ASSIGN_OR_RETURN(OutputFile file, PlanFile(name, parts[i]));
    files.push_back(std::move(file));
  }
  if (parts.size() > 1) files.push_back(Index(files, total_bytes));
  TESSERA_ASSIGN_OR_RETURN(
      std::string config,
      WriteHuggingFaceConfig(manifest.model(), weights.empty() ? DType::kF32 : weights[0].dtype));
  files.push_back(PlainOutputFile("config.json", std::move(config)));
  files.back().commits = true;
  if (options.tokenizer != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<TokenizerFile> tokenizer,
                             In(options.tokenizer_path, HuggingFaceFiles(*options.tokenizer)));
    for (TokenizerFile& file : tokenizer) {
      files.push_back(PlainOutputFile(std::move(file.name), std::move(file.contents)));
    }
  }
  return files;
}

}  // namespace tessera::ckpt::convert
