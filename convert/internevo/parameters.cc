#include "convert/internevo/parameters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/pickle/json.h"
#include "convert/pickle/value.h"
#include "convert/torch/archive.h"
#include "convert/torch/torch_file.h"
#include "nlohmann/json.hpp"

namespace tessera::ckpt::convert {
namespace {

using pickle::Value;

constexpr std::string_view kModelConfig = "model_config.pt";
// The parameters of a model whose rotary embedding turns neighbouring rows.
constexpr std::string_view kPairedRows = "internevo.qk_interleaved";

nlohmann::json DictToJson(const Value& dict) {
  nlohmann::json json = nlohmann::json::object();
  for (size_t i = 0; i < dict.entry_count(); ++i) {
    const auto [key, value] = dict.entry(i);
    const auto name = key.AsText();
    if (!name || !IsValidUtf8(*name)) continue;
    nlohmann::json converted = pickle::ScalarToJson(value);
    if (!converted.is_null()) json[std::string(*name)] = std::move(converted);
  }
  return json;
}

// Whether the rotary embedding turns neighbouring rows of a head. Releases before `qk_interleaved`
// had `adapt_hf`, which means the opposite.
absl::StatusOr<bool> HasPairedRows(const Value& config) {
  if (const auto paired = config.Find("qk_interleaved").AsBool()) return *paired;
  if (const auto halves = config.Find("adapt_hf").AsBool()) return !*halves;
  return absl::InvalidArgumentError(
      "neither qk_interleaved nor adapt_hf, whose defaults differ between releases: add the one "
      "that the run had");
}

struct Model {
  ModelDescription description;
  std::vector<ForeignParameter> parameters;
};

absl::StatusOr<Model> MakeModel(const Value& config, const ModelRules& rules, int64_t tensor_count,
                                uint64_t file_bytes) {
  if (config.entry_count() == 0) return absl::DataLossError("no dict of the model's settings");
  TESSERA_ASSIGN_OR_RETURN(const bool paired, HasPairedRows(config));
  const std::string_view framework = paired ? kPairedRows : kInternEvo;
  Model model;
  TESSERA_ASSIGN_OR_RETURN(
      model.description,
      rules.ReadForeignConfig(framework, DictToJson(config).dump(), tensor_count));
  TESSERA_RETURN_IF_ERROR(CheckModelFits(model.description, file_bytes));
  TESSERA_ASSIGN_OR_RETURN(model.parameters,
                           rules.ForeignParameters(framework, model.description.config));
  return model;
}

// Whether both are the same elements of the same tensors, however ranks cut them.
bool AreSame(const ForeignParameter& a, const ForeignParameter& b) {
  return a.blocks.size() == b.blocks.size() &&
         std::ranges::equal(a.blocks, b.blocks, [](const auto& one, const auto& other) {
           return one.name == other.name && one.box == other.box;
         });
}

}  // namespace

absl::StatusOr<InternEvoParameters> InternEvoParameters::Read(Storage& storage,
                                                              std::string_view folder,
                                                              const ModelRules& rules,
                                                              int64_t tensor_count,
                                                              uint64_t file_bytes) {
  const std::string path = JoinPath(folder, kModelConfig);
  const absl::StatusOr<TorchArchive> archive = ReadTorchFile(storage, path);
  if (absl::IsNotFound(archive.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(storage.Describe(path), " is missing: it describes the model"));
  }
  TESSERA_RETURN_IF_ERROR(archive.status());
  TESSERA_ASSIGN_OR_RETURN(
      Model model,
      InFile(storage, path, MakeModel(archive->contents.root(), rules, tensor_count, file_bytes)));
  InternEvoParameters result;
  result.model_ = std::move(model.description);
  result.parameters_ = std::move(model.parameters);
  for (size_t i = 0; i < result.parameters_.size(); ++i) {
    result.by_name_.emplace(result.parameters_[i].name, i);
  }
  return result;
}

absl::StatusOr<const ForeignParameter*> InternEvoParameters::Find(const std::string& name,
                                                                  const Shape& shape,
                                                                  int64_t parts) const {
  const auto [begin, end] = by_name_.equal_range(name);
  if (begin == end) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", absl::CHexEscape(name.substr(0, 200)),
                     " belongs to no parameter of the model that model_config.pt describes"));
  }
  const ForeignParameter* found = nullptr;
  std::set<std::string> expected;
  for (auto at = begin; at != end; ++at) {
    const ForeignParameter& parameter = parameters_[at->second];
    const absl::StatusOr<Shape> local = LocalShape(parameter, parts);
    if (!local.ok()) continue;
    expected.insert(ShapeToString(*local));
    if (*local != shape) continue;
    if (found != nullptr && !AreSame(*found, parameter)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", name, ": by its shape ", ShapeToString(shape), " it could be ",
          found->blocks.front().name, " or ", parameter.blocks.front().name,
          ", which releases of InternEvo name differently; convert the checkpoint with the one "
          "that wrote it"));
    }
    if (found == nullptr) found = &parameter;
  }
  if (found != nullptr) return found;
  return absl::DataLossError(
      absl::StrCat("tensor ", name, ": shape ", ShapeToString(shape), ", expected ",
                   expected.empty() ? absl::StrCat("one that ", parts, " ranks divide")
                                    : absl::StrJoin(expected, " or ")));
}

}  // namespace tessera::ckpt::convert
