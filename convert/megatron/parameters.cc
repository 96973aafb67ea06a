#include "convert/megatron/parameters.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"

namespace tessera::ckpt::convert {
namespace {

absl::Status At(const std::string& where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace

absl::StatusOr<MegatronParameters> MegatronParameters::Create(const MegatronRun& run,
                                                              const ModelRules& rules,
                                                              const std::string& where,
                                                              int64_t tensor_count,
                                                              uint64_t file_bytes) {
  if (!run.has_arguments()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": no arguments of the run (\"args\"), which describe the model"));
  }
  MegatronParameters result;
  absl::StatusOr<ModelDescription> model =
      rules.ReadForeignConfig(kMegatron, run.ArgumentsAsJson(), tensor_count);
  if (!model.ok()) return At(where, model.status());
  result.model_ = *std::move(model);
  if (const absl::Status fits = CheckModelFits(result.model_, file_bytes); !fits.ok()) {
    return At(where, fits);
  }
  TESSERA_ASSIGN_OR_RETURN(result.parameters_,
                           rules.ForeignParameters(kMegatron, result.model_.config));
  for (size_t i = 0; i < result.parameters_.size(); ++i) {
    result.by_name_[result.parameters_[i].name] = i;
    for (const std::string& name : result.parameters_[i].other_names) result.by_name_[name] = i;
  }
  return result;
}

const ForeignParameter* MegatronParameters::Find(std::string_view name, int64_t rows) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  ForeignParameter& parameter = parameters_[found->second];
  if (parameter.padded && rows > parameter.shape[0]) parameter.shape[0] = rows;
  return &parameter;
}

}  // namespace tessera::ckpt::convert
