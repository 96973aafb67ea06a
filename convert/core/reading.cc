#include "convert/core/reading.h"

#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "convert/core/foreign_layout.h"

namespace tessera::ckpt::convert {

absl::Status At(const Storage& storage, std::string_view path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(storage.Describe(path), ": ", status.message()));
}

absl::Status Damaged(const Storage& storage, std::string_view path, const absl::AlphaNum& problem) {
  return absl::DataLossError(absl::StrCat(storage.Describe(path), ": ", problem));
}

void SetProgress(int64_t step, std::optional<int64_t> samples, Manifest& manifest) {
  TrainerState& trainer = *manifest.mutable_trainer();
  trainer.set_step(step);
  trainer.set_best_loss(std::numeric_limits<double>::infinity());
  if (samples && *samples >= 0) trainer.mutable_data()->set_consumed_samples(*samples);
}

uint64_t FileBytes(Storage& storage, std::span<const ForeignTensor> tensors) {
  std::set<std::string> files;
  for (const ForeignTensor& tensor : tensors) {
    for (const StoredPiece& piece : tensor.pieces) files.insert(piece.file);
  }
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    const absl::StatusOr<std::unique_ptr<ReadableFile>> open = storage.Open(file);
    if (open.ok()) bytes += (*open)->size_bytes();
  }
  return bytes;
}

absl::StatusOr<ForeignModel> ForeignModel::Read(std::string_view framework,
                                                std::string_view config_json, int64_t tensor_count,
                                                uint64_t file_bytes) {
  ForeignModel model;
  TESSERA_ASSIGN_OR_RETURN(model.description_,
                           ReadForeignConfig(framework, config_json, tensor_count));
  TESSERA_RETURN_IF_ERROR(CheckModelFits(model.description_, file_bytes));
  TESSERA_ASSIGN_OR_RETURN(model.parameters_,
                           ForeignParameters(framework, model.description_.config));
  for (size_t i = 0; i < model.parameters_.size(); ++i) {
    model.by_name_.emplace(model.parameters_[i].name, i);
    for (const std::string& name : model.parameters_[i].other_names) {
      model.by_name_.emplace(name, i);
    }
  }
  return model;
}

std::vector<ForeignParameter*> ForeignModel::Named(std::string_view name) {
  std::vector<ForeignParameter*> named;
  const auto [begin, end] = by_name_.equal_range(name);
  for (auto at = begin; at != end; ++at) named.push_back(&parameters_[at->second]);
  return named;
}

ForeignParameter* ForeignModel::Find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

}  // namespace tessera::ckpt::convert
