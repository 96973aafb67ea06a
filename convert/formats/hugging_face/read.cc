#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/parse_json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/models.h"
#include "convert/core/rank_grid.h"
#include "convert/core/reading.h"
#include "convert/formats/hugging_face/hugging_face.h"
#include "layout/box.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kConfig = "config.json";
// What torch.distributed.checkpoint's HuggingFaceStorageWriter records in the header of each file.
constexpr char kShardingInfo[] = "DCP_SHARDING_INFO";
constexpr char kSavedOffsets[] = "saved_offsets";
constexpr int64_t kMaxOffset = int64_t{1} << 40;

using TensorsByName = std::map<std::string, ForeignTensor>;
using NamesByFile = std::map<std::string, std::set<std::string>>;  // of tensors

// Returns whether the file is one rank's, which has its own parts of tensors.
bool IsShard(const std::string& name) {
  return RankPattern("shard-{5}-model-{5}-of-{5}.safetensors").Parse(name).has_value();
}

std::string IndexOf(const std::string& weights) { return weights + ".index.json"; }

// Returns the first of kWeightFiles that is there as a file or by its index; "" without any.
std::string FindWeights(const std::vector<std::string>& names) {
  for (const std::string weights : kWeightFiles) {
    if (Has(names, weights) || Has(names, IndexOf(weights))) return weights;
  }
  return "";
}

// Returns where a part of a tensor begins in the whole one; nullopt if that is malformed.
std::optional<Shape> OffsetOf(const nlohmann::json& info, const SafetensorsEntry& entry) {
  const auto found = info.find(entry.key);
  if (found == info.end() || !found->is_object() || !found->contains(kSavedOffsets)) {
    return std::nullopt;
  }
  Shape offset;
  for (const nlohmann::json& number : (*found)[kSavedOffsets]) {
    if (!number.is_number_unsigned() || number > kMaxOffset) return std::nullopt;
    offset.push_back(number.get<int64_t>());
  }
  return offset.size() == entry.shape.size() ? std::optional(offset) : std::nullopt;
}

// Returns the files of the index, with the tensors of each.
absl::StatusOr<NamesByFile> ReadIndex(Storage& storage, const std::string& index) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadAll(storage, index, kMaxJsonBytes));
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return Damaged(storage, index, "no JSON object with a weight_map");
  }
  NamesByFile files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return Damaged(storage, index, "weight_map: ", tensor, ": not a file");
    files[file.get<std::string>()].insert(tensor);
  }
  if (files.empty()) return Damaged(storage, index, "the weight_map names no tensor");
  return files;
}

// The files that are read, and the names of their tensors if an index has them.
struct ChosenFiles {
  NamesByFile files;
  std::string index;  // "" without an index
};

// Chooses `file` if it is not empty. Otherwise, chooses the files of the index or, without one, the
// file of the weights or all shards, and adds notes about the files that are not read.
absl::StatusOr<ChosenFiles> ChooseFiles(Storage& storage, const std::string& file,
                                        std::vector<std::string>& notes) {
  if (!file.empty()) return ChosenFiles{.files = {{file, {}}}};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  const std::string single = FindWeights(names), index = IndexOf(single);
  const bool has_single = Has(names, single), has_index = Has(names, index);
  ChosenFiles chosen;
  if (has_index) {
    absl::StatusOr<NamesByFile> read = ReadIndex(storage, index);
    if (read.ok()) {
      chosen = {.files = *std::move(read), .index = index};
    } else if (has_single && absl::IsDataLoss(read.status())) {
      notes.push_back(absl::StrCat("Not read: ", read.status().message(), "."));
    } else {
      return read.status();
    }
  }
  const bool replaces_index = has_index && has_single && !chosen.files.contains(single);
  if (replaces_index) chosen = {};
  std::vector<std::string> unread, others, of_torch;
  if (replaces_index) unread.push_back(index);
  for (const std::string& name : names) {
    if (chosen.index.empty() && (has_single ? name == single : IsShard(name))) chosen.files[name];
    if (name.ends_with(".bin") && name.find("_model") != name.npos) of_torch.push_back(name);
    if (!name.ends_with(".safetensors") || chosen.files.contains(name)) continue;
    const bool is_part = RankPattern("model-{5}-of-{5}.safetensors").Parse(name).has_value();
    (has_index && is_part ? unread : others).push_back(name);
  }
  NoteLeftOut(replaces_index ? absl::StrCat("files that ", single, " replaces")
                             : absl::StrCat("files that ", index, " does not name"),
              unread, notes);
  NoteLeftOut("files of safetensors beside the model's", others, notes);
  NoteLeftOut("other weights beside those of safetensors", of_torch, notes);
  return chosen;
}

// Adds the tensors in the header of one file. If shards have parts of a tensor, it reaches as far
// as they do.
absl::Status ReadHeader(Storage& storage, const std::string& index, const std::string& name,
                        TensorsByName& tensors) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(name);
  if (absl::IsInvalidArgument(file.status())) {
    return Damaged(storage, index, file.status().message());
  }
  TESSERA_RETURN_IF_ERROR(file.status());
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                           At(storage, name, ReadSafetensors(**file, 0, (*file)->size_bytes())));
  const bool is_shard = IsShard(name);
  const auto text = header.metadata.find(kShardingInfo);
  const nlohmann::json info =
      text == header.metadata.end() ? nlohmann::json() : ParseJson(text->second);
  for (const SafetensorsEntry& entry : header.entries) {
    const auto damaged = [&](const auto&... problem) {
      return Damaged(storage, name, "tensor ", entry.key, problem...);
    };
    const auto offset = is_shard ? OffsetOf(info, entry) : Shape(entry.shape.size(), 0);
    if (!offset.has_value()) {
      return damaged(": no ", kSavedOffsets, " in the header's ", kShardingInfo);
    }
    ForeignTensor& tensor = tensors[entry.key];
    if (tensor.pieces.empty()) {
      tensor = {.name = entry.key, .dtype = entry.dtype, .shape = entry.shape};
    } else if (!is_shard) {
      return damaged(" is in ", tensor.pieces[0].file, " too");
    } else if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size()) {
      return damaged(" has another dtype or rank in ", tensor.pieces[0].file);
    }
    for (size_t d = 0; d < entry.shape.size(); ++d) {
      tensor.shape[d] = std::max(tensor.shape[d], (*offset)[d] + entry.shape[d]);
    }
    tensor.pieces.push_back(
        {{*offset, entry.shape}, name, entry.file_offset, ContiguousStrides(entry.shape)});
  }
  return absl::OkStatus();
}

// Reads the headers of all files. NotFound, listing them, for files that are missing.
absl::StatusOr<TensorsByName> ReadHeaders(Storage& storage, const ChosenFiles& chosen) {
  TensorsByName tensors;
  std::vector<std::string> missing;
  for (const auto& [file, unused] : chosen.files) {
    const absl::Status read = ReadHeader(storage, chosen.index, file, tensors);
    if (!absl::IsNotFound(read)) TESSERA_RETURN_IF_ERROR(read);
    if (!read.ok()) missing.push_back(file);
  }
  if (missing.empty()) return tensors;
  return NotFound(storage.Describe(chosen.index), ": missing: ", JoinFirst(missing, ", "));
}

// Checks that the files have the tensors that the index names, and no others.
absl::Status CheckIndex(const Storage& storage, const ChosenFiles& chosen,
                        const TensorsByName& tensors) {
  size_t count = 0;
  for (const auto& [file, names] : chosen.files) {
    count += names.size();
    for (const std::string& name : names) {
      const auto found = tensors.find(name);
      if (found != tensors.end() && found->second.pieces[0].file == file) continue;
      return Damaged(storage, file, "no tensor ", name);
    }
  }
  if (count == tensors.size()) return absl::OkStatus();
  return Damaged(storage, chosen.index, count, " tensors, the files have ", tensors.size());
}

// Reads the tensors of `file` or, if it is empty, of the folder under their own names.
absl::StatusOr<TensorsByName> ReadTensors(Storage& storage, const std::string& file,
                                          std::vector<std::string>& notes) {
  TESSERA_ASSIGN_OR_RETURN(const ChosenFiles chosen, ChooseFiles(storage, file, notes));
  TESSERA_ASSIGN_OR_RETURN(TensorsByName tensors, ReadHeaders(storage, chosen));
  if (!chosen.index.empty()) TESSERA_RETURN_IF_ERROR(CheckIndex(storage, chosen, tensors));
  return tensors;
}

// Matches the tensors of a model with those of its files.
class ModelReader {
 public:
  explicit ModelReader(const HuggingFaceDescription& description) : description_(description) {}

  absl::StatusOr<std::vector<ForeignTensor>> Read(TensorsByName tensors) {
    for (auto& [name, tensor] : tensors) {
      std::string own = WithoutWrappers(name);
      if (description_.IsComputed(own)) continue;
      const auto [at, is_new] = tensors_.emplace(std::move(own), std::move(tensor));
      if (is_new) continue;
      return DataLoss("tensor ", name, ": without its wrappers it has the same name as ",
                      at->second.name);
    }
    std::vector<ForeignTensor> result;
    for (const LogicalParameter& parameter : description_.model.parameters) {
      AddParameter(parameter, result);
    }
    std::vector<std::string> others;
    for (const auto& [name, tensor] : tensors_) others.push_back(Shown(tensor.name));
    if (problems_.empty() && others.empty()) return result;
    std::string message = JoinFirst(problems_, "; ");
    if (!others.empty()) {
      absl::StrAppend(&message, message.empty() ? "" : "; ", "the files have ",
                      JoinFirst(others, ", "), ", which the model does not have");
    }
    return DataLoss(message);
  }

 private:
  // Removes the tensor of this logical name, which may lack its prefix, from those of the files.
  std::optional<ForeignTensor> Take(const std::string& name) {
    const std::string_view prefix = description_.format->prefix;
    auto found = tensors_.extract(name);
    if (!found && name.starts_with(prefix)) found = tensors_.extract(name.substr(prefix.size()));
    return found ? std::optional(std::move(found.mapped())) : std::nullopt;
  }

  void AddParameter(const LogicalParameter& parameter, std::vector<ForeignTensor>& result) {
    // Some programs store tied parameters under both names, and some under the second alone.
    std::vector<ForeignTensor> copies;
    for (const std::string& name : {parameter.name, parameter.tied_name}) {
      if (name.empty()) continue;
      if (std::optional<ForeignTensor> tensor = Take(name)) copies.push_back(*std::move(tensor));
    }
    if (copies.empty()) {
      problems_.push_back(absl::StrCat("tensor ", parameter.name, " is missing"));
      return;
    }
    ForeignTensor tensor = {.name = parameter.name,
                            .dtype = copies[0].dtype,
                            .shape = parameter.shape,
                            .foreign_name = copies[0].name,
                            .partition = parameter.partition};
    for (ForeignTensor& copy : copies) {
      if (copy.shape != parameter.shape || copy.dtype != tensor.dtype) {
        problems_.push_back(absl::StrCat("tensor ", copy.name, " in ", copy.pieces[0].file,
                                         ": expected ", ProtoName(tensor.dtype), " ",
                                         ShapeToString(parameter.shape), ", found ",
                                         ProtoName(copy.dtype), " ", ShapeToString(copy.shape)));
        return;
      }
      tensor.pieces.push_back(std::move(copy.pieces[0]));
    }
    if (!parameter.tied_name.empty()) {
      result.push_back({.name = parameter.tied_name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .foreign_name = tensor.foreign_name,
                        .alias_of = parameter.name});
    }
    result.push_back(std::move(tensor));
  }

  const HuggingFaceDescription& description_;
  TensorsByName tensors_;
  std::vector<std::string> problems_;
};

// The error for a model that is not known here.
absl::Status UnknownModel(const Storage& storage, absl::string_view reason) {
  return InvalidArgument(storage.Describe(""), ": ", reason,
                         "; ckpt COMMAND --from=safetensors reads the tensors alone, under their "
                         "own names");
}

}  // namespace

absl::StatusOr<bool> IsHuggingFace(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  return Has(names, kConfig) && FindWeights(names) == kWeightFiles[0];
}

absl::StatusOr<bool> HasSafetensors(Storage& storage) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(""));
  return !FindWeights(names).empty() || std::ranges::any_of(names, IsShard);
}

absl::StatusOr<ForeignCheckpoint> ReadSafetensors(Storage& storage, const std::string& file) {
  ForeignCheckpoint checkpoint = CheckpointOf(kSafetensors, "safetensors");
  TESSERA_ASSIGN_OR_RETURN(TensorsByName tensors, ReadTensors(storage, file, checkpoint.notes));
  for (auto& [name, tensor] : tensors) {
    if (tensor.dtype == DType::kUnspecified) {
      checkpoint.unread[name] = "a tensor of a dtype that is not read";
    } else {
      checkpoint.tensors.push_back(std::move(tensor));
    }
  }
  NoteLeftOut("tensors of dtypes that are not read", KeysOf(checkpoint.unread), checkpoint.notes);
  return checkpoint;
}

absl::StatusOr<ForeignCheckpoint> ReadHuggingFace(Storage& storage) {
  ForeignCheckpoint checkpoint = CheckpointOf(kHuggingFace, "transformers");
  TESSERA_ASSIGN_OR_RETURN(TensorsByName tensors, ReadTensors(storage, "", checkpoint.notes));
  TESSERA_ASSIGN_OR_RETURN(const std::string config, ReadAll(storage, kConfig, kMaxJsonBytes));
  if (!ParseJson(config).is_object()) {
    return Damaged(storage, kConfig, "not a JSON object of at most ", kMaxJsonDepth, " levels");
  }
  const absl::StatusOr<HuggingFaceDescription> description =
      ReadHuggingFaceConfig(config, static_cast<int64_t>(tensors.size()));
  if (!description.ok()) return UnknownModel(storage, description.status().message());
  for (const auto& [name, tensor] : tensors) {
    if (tensor.dtype != DType::kUnspecified) continue;
    return UnknownModel(storage,
                        absl::StrCat("the tensor ", Shown(name), " has a dtype that is not read"));
  }
  *checkpoint.description.mutable_model() = description->model.config;
  const std::string other = WhyOtherTensors(&*description, KeysOf(tensors));
  absl::StatusOr<std::vector<ForeignTensor>> read =
      ModelReader(*description).Read(std::move(tensors));
  const auto is_quantized = [](DType dtype) {
    return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
  };
  if (!read.ok() && !other.empty()) {
    return UnknownModel(storage, absl::StrCat(other, ": ", read.status().message()));
  }
  if (read.ok() && description->other_tensors == kQuantized &&
      std::ranges::any_of(*read, is_quantized, &ForeignTensor::dtype)) {
    return UnknownModel(storage, kQuantized);
  }
  TESSERA_ASSIGN_OR_RETURN(checkpoint.tensors, At(storage, "", std::move(read)));
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
