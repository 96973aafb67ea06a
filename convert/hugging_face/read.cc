#include "convert/hugging_face/read.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/glob.h"
#include "base/join_first.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "checkpoint/format/safetensors.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

// A tensor of the files.
struct FileTensor {
  std::string file;
  SafetensorsEntry entry;
};
using FileTensors = std::map<std::string, FileTensor>;

absl::Status Damaged(const Storage& storage, std::string_view folder, std::string_view file,
                     const absl::AlphaNum& problem) {
  return absl::DataLossError(absl::StrCat(storage.Describe(JoinPath(folder, file)), ": ", problem));
}

// The files of the index, and which tensors are in which.
absl::StatusOr<std::map<std::string, std::set<std::string>>> ReadIndex(Storage& storage,
                                                                       std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           ReadAll(storage, JoinPath(folder, kIndex), kMaxJsonBytes));
  const nlohmann::json json = ParseJson(text);
  const auto damaged = [&](const absl::AlphaNum& problem) {
    return Damaged(storage, folder, kIndex, problem);
  };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return damaged("no JSON object with a weight_map");
  }
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return damaged(absl::StrCat("weight_map: ", tensor, ": not a file"));
    files[file.get<std::string>()].insert(tensor);
  }
  return files;
}

// Adds the tensors in the header of one file.
absl::Status ReadHeader(Storage& storage, std::string_view folder, const std::string& name,
                        FileTensors& tensors) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(JoinPath(folder, name));
  if (absl::IsInvalidArgument(file.status())) {
    return Damaged(storage, folder, kIndex, file.status().message());
  }
  TESSERA_RETURN_IF_ERROR(file.status());
  const uint64_t size = (*file)->size_bytes();
  std::string bytes(std::min<uint64_t>(size, sizeof(uint64_t)), '\0');
  TESSERA_RETURN_IF_ERROR((*file)->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(bytes, size);
  if (!header_bytes.ok()) return Damaged(storage, folder, name, header_bytes.status().message());
  bytes.resize(*header_bytes);
  TESSERA_RETURN_IF_ERROR((*file)->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(bytes, size);
  if (!header.ok()) return Damaged(storage, folder, name, header.status().message());
  for (SafetensorsEntry& entry : header->entries) {
    std::string key = entry.key;
    const auto [at, is_new] = tensors.emplace(std::move(key), FileTensor{name, std::move(entry)});
    if (!is_new) {
      return Damaged(storage, folder, name,
                     absl::StrCat("tensor ", at->first, " is in ", at->second.file, " too"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FileTensors> ReadHeaders(Storage& storage, std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(folder));
  FileTensors tensors;
  if (std::ranges::find(names, kIndex) == names.end()) {
    TESSERA_RETURN_IF_ERROR(ReadHeader(storage, folder, std::string(kSingle), tensors));
    return tensors;
  }
  TESSERA_ASSIGN_OR_RETURN(const auto files, ReadIndex(storage, folder));
  std::vector<std::string> missing;
  for (const auto& [file, unused] : files) {
    const absl::Status read = ReadHeader(storage, folder, file, tensors);
    if (!absl::IsNotFound(read)) TESSERA_RETURN_IF_ERROR(read);
    if (!read.ok()) missing.push_back(file);
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat(storage.Describe(JoinPath(folder, kIndex)),
                                            ": missing: ", JoinFirst(missing, ", ")));
  }
  size_t indexed = 0;
  for (const auto& [file, wanted] : files) {
    indexed += wanted.size();
    for (const std::string& tensor : wanted) {
      const auto found = tensors.find(tensor);
      if (found != tensors.end() && found->second.file == file) continue;
      return Damaged(storage, folder, file, absl::StrCat("no tensor ", tensor));
    }
  }
  if (indexed != tensors.size()) {
    return Damaged(storage, folder, kIndex,
                   absl::StrCat(indexed, " tensors, the files have ", tensors.size()));
  }
  return tensors;
}

StoredPiece WholePiece(const FileTensor& tensor) {
  return {WholeBox(tensor.entry.shape), tensor.file, tensor.entry.file_offset,
          ContiguousStrides(tensor.entry.shape)};
}

// The tensors of a model, found among those of its files.
class ModelReader {
 public:
  ModelReader(const HuggingFaceDescription& description, FileTensors tensors)
      : description_(description), tensors_(std::move(tensors)) {}

  absl::StatusOr<std::vector<ForeignTensor>> Read() {
    std::erase_if(tensors_, [&](const auto& named) { return IsComputed(named.first); });
    std::vector<ForeignTensor> result;
    for (const ModelParameter& parameter : description_.model.parameters) {
      AddParameter(parameter, result);
    }
    for (const auto& [name, tensor] : tensors_) {
      problems_.push_back(
          absl::StrCat("tensor ", name, " in ", tensor.file, " is not the model's"));
    }
    if (problems_.empty()) return result;
    return absl::DataLossError(JoinFirst(problems_, "; "));
  }

 private:
  bool IsComputed(const std::string& name) const {
    return std::ranges::any_of(description_.computed, [&](const std::string& pattern) {
      return MatchesGlob(pattern, name) || MatchesGlob(pattern, description_.prefix + name);
    });
  }

  // Removes the tensor of this logical name, which may lack its prefix, from those of the files.
  std::optional<FileTensor> Take(const std::string& name) {
    auto found = tensors_.find(name);
    if (found == tensors_.end() && name.starts_with(description_.prefix)) {
      found = tensors_.find(name.substr(description_.prefix.size()));
    }
    if (found == tensors_.end()) return std::nullopt;
    FileTensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }

  void AddParameter(const ModelParameter& parameter, std::vector<ForeignTensor>& result) {
    // Some programs store tied parameters under both names, and some under the second alone.
    std::vector<FileTensor> copies;
    for (const std::string& name : {parameter.name, parameter.tied_name}) {
      if (name.empty()) continue;
      if (std::optional<FileTensor> tensor = Take(name)) copies.push_back(*std::move(tensor));
    }
    if (copies.empty()) {
      problems_.push_back(absl::StrCat("tensor ", parameter.name, " is missing"));
      return;
    }
    ForeignTensor tensor = {.name = parameter.name,
                            .dtype = copies[0].entry.dtype,
                            .shape = parameter.shape,
                            .partition = parameter.partition};
    for (const FileTensor& copy : copies) {
      if (copy.entry.shape != parameter.shape || copy.entry.dtype != tensor.dtype) {
        problems_.push_back(
            absl::StrCat("tensor ", copy.entry.key, " in ", copy.file, ": expected ",
                         DTypeText(tensor.dtype), " ", ShapeToString(parameter.shape), ", found ",
                         DTypeText(copy.entry.dtype), " ", ShapeToString(copy.entry.shape)));
        return;
      }
      tensor.pieces.push_back(WholePiece(copy));
    }
    if (!parameter.tied_name.empty()) {
      result.push_back({.name = parameter.tied_name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .alias_of = parameter.name});
    }
    result.push_back(std::move(tensor));
  }

  static std::string DTypeText(DType dtype) { return std::string(DTypeName(dtype)); }

  const HuggingFaceDescription& description_;
  FileTensors tensors_;
  std::vector<std::string> problems_;
};

}  // namespace

absl::StatusOr<bool> IsHuggingFace(Storage& storage, std::string_view folder) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(folder));
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  return has(kConfig) && (has(kSingle) || has(kIndex));
}

absl::StatusOr<ForeignCheckpoint> ReadHuggingFace(Storage& storage, std::string_view folder,
                                                  const ModelRules* rules) {
  TESSERA_ASSIGN_OR_RETURN(FileTensors tensors, ReadHeaders(storage, folder));
  ForeignCheckpoint checkpoint = {.format = std::string(kHuggingFace)};
  checkpoint.description.mutable_producer()->set_program("transformers");
  if (rules == nullptr) {
    for (const auto& [name, tensor] : tensors) {
      checkpoint.tensors.push_back({.name = name,
                                    .dtype = tensor.entry.dtype,
                                    .shape = tensor.entry.shape,
                                    .pieces = {WholePiece(tensor)}});
    }
    return checkpoint;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string config,
                           ReadAll(storage, JoinPath(folder, kConfig), kMaxJsonBytes));
  const absl::StatusOr<HuggingFaceDescription> description =
      rules->ReadHuggingFaceConfig(config, static_cast<int64_t>(tensors.size()));
  if (!description.ok()) {
    return absl::Status(description.status().code(), absl::StrCat(storage.Describe(folder), ": ",
                                                                  description.status().message()));
  }
  *checkpoint.description.mutable_model() = description->model.config;
  absl::StatusOr<std::vector<ForeignTensor>> found =
      ModelReader(*description, std::move(tensors)).Read();
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat(storage.Describe(folder), ": ", found.status().message()));
  }
  checkpoint.tensors = *std::move(found);
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
