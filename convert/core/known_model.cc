#include "convert/core/known_model.h"

#include <cstdint>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/dtype.h"
#include "convert/core/meta_config.h"
#include "layout/box.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kHuggingFaceConfig = "config.json";
constexpr std::string_view kMetaConfig = "params.json";
constexpr std::string_view kMeta = "meta";
constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;

using Parameters = std::vector<ForeignParameter>;

// The parameters, in this order of their names, under their logical names less a prefix.
Parameters LogicalNaming(const ModelDescription& model, const std::vector<std::string>& order,
                         const std::string& prefix) {
  const auto shorten = [&](const std::string& name) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  std::map<std::string, const ModelParameter*> by_name;
  for (const ModelParameter& parameter : model.parameters) by_name[parameter.name] = &parameter;
  Parameters parameters;
  for (const std::string& logical_name : order) {
    const ModelParameter& logical = *by_name.at(logical_name);
    ForeignParameter parameter = {.name = shorten(logical.name), .shape = logical.shape};
    parameter.blocks.push_back({.name = logical.name,
                                .box = WholeBox(logical.shape),
                                .foreign_offset = std::vector<int64_t>(logical.shape.size(), 0)});
    if (!logical.tied_name.empty()) parameter.other_names.push_back(shorten(logical.tied_name));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

uint64_t StoredBytes(const ForeignCheckpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const ForeignTensor& tensor : checkpoint.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      bytes += static_cast<uint64_t>(ElementCount(piece.box.shape)) * DTypeSize(tensor.dtype);
    }
  }
  return bytes;
}

absl::StatusOr<bool> Has(Storage& storage, std::string_view folder, std::string_view file) {
  const auto open = storage.Open(JoinPath(folder, file));
  if (absl::IsNotFound(open.status())) return false;
  TESSERA_RETURN_IF_ERROR(open.status());
  return true;
}

}  // namespace

absl::StatusOr<std::optional<KnownModel>> FindModel(Storage& storage, std::string_view folder,
                                                    const ModelRules& rules,
                                                    const ModelConfig* model,
                                                    std::string_view framework,
                                                    const ForeignCheckpoint& checkpoint) {
  const auto count = static_cast<int64_t>(checkpoint.tensors.size());
  TESSERA_ASSIGN_OR_RETURN(const bool is_hugging_face, Has(storage, folder, kHuggingFaceConfig));
  TESSERA_ASSIGN_OR_RETURN(const bool is_meta, Has(storage, folder, kMetaConfig));
  KnownModel known;
  std::string prefix;
  std::vector<std::string> order;
  if (!is_hugging_face && is_meta) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string json,
        ReadMetaConfig(storage, JoinPath(folder, kMetaConfig), checkpoint.tensors, /*parts=*/1));
    TESSERA_ASSIGN_OR_RETURN(known.description, rules.ReadForeignConfig(kMeta, json, count));
  } else {
    std::string json;
    if (is_hugging_face) {
      TESSERA_ASSIGN_OR_RETURN(
          json, ReadAll(storage, JoinPath(folder, kHuggingFaceConfig), kMaxJsonBytes));
    } else if (model != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(json, rules.WriteHuggingFaceConfig(*model, F32));
    } else {
      return std::nullopt;
    }
    TESSERA_ASSIGN_OR_RETURN(HuggingFaceDescription description,
                             rules.ReadHuggingFaceConfig(json, count));
    known.description = std::move(description.model);
    known.computed = std::move(description.computed);
    prefix = std::move(description.prefix);
    order = std::move(description.order);
    // config.json has no field for all that a model of this library has.
    if (!is_hugging_face) known.description.config = *model;
  }
  TESSERA_RETURN_IF_ERROR(CheckModelFits(known.description, StoredBytes(checkpoint)));
  if (!framework.empty()) {
    TESSERA_ASSIGN_OR_RETURN(known.namings.emplace_back(),
                             rules.ForeignParameters(framework, known.description.config));
    return known;
  }
  if (order.empty()) {
    for (const ModelParameter& parameter : known.description.parameters) {
      order.push_back(parameter.name);
    }
  }
  known.namings.push_back(LogicalNaming(known.description, order, ""));
  if (!prefix.empty()) {
    known.namings.push_back(LogicalNaming(known.description, order, prefix));
  }
  absl::StatusOr<Parameters> meta = rules.ForeignParameters(kMeta, known.description.config);
  if (meta.ok()) known.namings.push_back(*std::move(meta));
  return known;
}

}  // namespace tessera::ckpt::convert
