#include "convert/core/known_model.h"

#include <map>
#include <utility>

#include "base/parse_json.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/core/models.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/core/value.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kHuggingFaceConfig = "config.json";
constexpr std::string_view kMetaConfig = "params.json";

// Returns the parameters, in this order of their names, under their logical names without a prefix.
Parameters LogicalNaming(const ModelDescription& model, const std::vector<std::string>& order,
                         const std::string& prefix) {
  const auto shorten = [&](const std::string& name) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  std::map<std::string, const LogicalParameter*> by_name;
  for (const LogicalParameter& parameter : model.parameters) by_name[parameter.name] = &parameter;
  Parameters parameters;
  for (const std::string& logical_name : order) {
    const LogicalParameter& logical = *by_name.at(logical_name);
    ForeignParameter parameter = SameTensor(shorten(logical.name), logical.name, logical.shape);
    if (!logical.tied_name.empty()) parameter.other_names.push_back(shorten(logical.tied_name));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

constexpr std::string_view kEmbeddings = "tok_embeddings.weight";
constexpr const char* kVocabulary = "vocab_size";

int64_t IntegerOf(const nlohmann::json& json, const char* name) {
  const auto field = json.find(name);
  return field != json.end() && field->is_number_integer() ? field->get<int64_t>() : 0;
}

// Returns the rows of the whole table. nullopt where the files have none of this width.
std::optional<int64_t> Rows(std::span<const ForeignTensor> tensors, int64_t columns,
                            int64_t parts) {
  for (const ForeignTensor& tensor : tensors) {
    if (!tensor.name.ends_with(kEmbeddings) || tensor.shape.size() != 2) continue;
    if (tensor.shape[1] == columns && tensor.shape[0] <= INT64_MAX / parts) {
      return tensor.shape[0] * parts;
    }
    if (columns % parts == 0 && tensor.shape[1] == columns / parts) return tensor.shape[0];
  }
  return std::nullopt;
}

// Returns the model that the files themselves describe, as those of nanoGPT do; nullopt where they
// do not.
absl::StatusOr<std::optional<ModelProto>> DescribedByValues(const ForeignCheckpoint& checkpoint,
                                                            int64_t tensor_count) {
  constexpr std::string_view kArguments = "model_args.";
  nlohmann::json arguments = nlohmann::json::object();
  for (const auto& [name, value] : ValuesByName(checkpoint.state)) {
    if (!name.starts_with(kArguments)) continue;
    arguments[name.substr(kArguments.size())] = ValueToPlainJson(*value);
  }
  if (!arguments.contains("block_size")) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(ModelDescription model,
                           ReadForeignConfig(kNanoGpt, arguments.dump(), tensor_count));
  return std::move(model.config);
}

uint64_t StoredBytes(const ForeignCheckpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      bytes += static_cast<uint64_t>(ElementCount(piece.box.shape)) * ElementSize(tensor.dtype);
    }
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> ReadMetaConfig(Storage& storage, const std::string& path,
                                           std::span<const ForeignTensor> tensors, int64_t parts) {
  TESSERA_ASSIGN_OR_RETURN(std::string text, ReadAll(storage, path, kMaxJsonBytes));
  nlohmann::json json = ParseJson(text);
  if (!json.is_object() || IntegerOf(json, kVocabulary) != -1) return text;
  const std::optional<int64_t> rows = Rows(tensors, IntegerOf(json, "dim"), parts);
  if (!rows) return text;
  json[kVocabulary] = *rows;
  return json.dump();
}

absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, std::string_view folder,
                                                    const ModelProto* model,
                                                    std::string_view framework,
                                                    const ForeignCheckpoint& checkpoint) {
  const auto count = static_cast<int64_t>(checkpoint.tensors.size());
  TESSERA_ASSIGN_OR_RETURN(const bool is_hugging_face,
                           Exists(storage, JoinPath(folder, kHuggingFaceConfig)));
  TESSERA_ASSIGN_OR_RETURN(const bool is_meta, Exists(storage, JoinPath(folder, kMetaConfig)));
  KnownModel known;
  if (!is_hugging_face && is_meta) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string json,
        ReadMetaConfig(storage, JoinPath(folder, kMetaConfig), checkpoint.tensors, /*parts=*/1));
    TESSERA_ASSIGN_OR_RETURN(known.description, ReadForeignConfig(kMeta, json, count));
  } else {
    std::string json;
    std::optional<ModelProto> described;
    if (is_hugging_face) {
      TESSERA_ASSIGN_OR_RETURN(
          json, ReadAll(storage, JoinPath(folder, kHuggingFaceConfig), kMaxJsonBytes));
    } else {
      TESSERA_ASSIGN_OR_RETURN(described, DescribedByValues(checkpoint, count));
      if (described.has_value()) {
        model = &*described;
        known.notes.emplace_back(
            "nanoGPT computes GELU exactly (nn.GELU), and GPT-2 here by its tanh approximation: "
            "activations differ by up to 0.0005.");
      }
      if (model == nullptr) return std::nullopt;
      TESSERA_ASSIGN_OR_RETURN(json, WriteHuggingFaceConfig(*model, DType::kF32));
    }
    TESSERA_ASSIGN_OR_RETURN(known.hugging_face, ReadHuggingFaceConfig(json, count));
    known.description = known.hugging_face->model;
    // config.json has no field for all that a model of this library has.
    if (!is_hugging_face) known.description.config = *model;
  }
  TESSERA_RETURN_IF_ERROR(CheckModelFits(known.description, StoredBytes(checkpoint)));
  if (!framework.empty()) {
    TESSERA_ASSIGN_OR_RETURN(known.namings.emplace_back(),
                             ForeignParameters(framework, known.description.config));
    return known;
  }
  std::vector<std::string> order;
  if (known.hugging_face) order = known.hugging_face->order;
  if (order.empty()) {
    for (const LogicalParameter& parameter : known.description.parameters) {
      order.push_back(parameter.name);
    }
  }
  known.namings.push_back(LogicalNaming(known.description, order, ""));
  if (known.hugging_face && !known.hugging_face->format->prefix.empty()) {
    const std::string prefix(known.hugging_face->format->prefix);
    known.namings.push_back(LogicalNaming(known.description, order, prefix));
  }
  for (const char* const other : {kMeta, kNanoGpt}) {
    absl::StatusOr<Parameters> parameters = ForeignParameters(other, known.description.config);
    if (parameters.ok()) known.namings.push_back(*std::move(parameters));
  }
  return known;
}

}  // namespace tessera::ckpt::convert
