#include "convert/core/reading.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "convert/core/foreign_layout.h"

namespace tessera::ckpt::convert {

absl::Status In(const absl::AlphaNum& what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

absl::Status At(const Storage& storage, std::string_view path, const absl::Status& status) {
  return status.ok() ? status : In(storage.Describe(path), status);
}

absl::Status Damaged(const Storage& storage, std::string_view path, const absl::AlphaNum& problem) {
  return absl::DataLossError(absl::StrCat(storage.Describe(path), ": ", problem));
}

std::string Shown(std::string_view text) { return absl::CHexEscape(View(text.substr(0, 200))); }

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenIfPresent(Storage& storage,
                                                            std::string_view path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = storage.Open(path);
  if (absl::IsNotFound(file.status())) return nullptr;
  return file;
}

absl::StatusOr<bool> Exists(Storage& storage, std::string_view path) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, OpenIfPresent(storage, path));
  return file != nullptr;
}

absl::StatusOr<std::string> ReadPart(const ReadableFile& file, uint64_t offset, uint64_t length) {
  std::string bytes(length, '\0');
  TESSERA_RETURN_IF_ERROR(file.ReadAt(offset, std::as_writable_bytes(std::span<char>(bytes))));
  return bytes;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensors(const ReadableFile& file, uint64_t offset,
                                                  uint64_t length) {
  TESSERA_ASSIGN_OR_RETURN(const std::string first,
                           ReadPart(file, offset, std::min<uint64_t>(length, sizeof(uint64_t))));
  TESSERA_ASSIGN_OR_RETURN(const uint64_t header_bytes, SafetensorsHeaderBytes(first, length));
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, ReadPart(file, offset, header_bytes));
  return ParseSafetensorsHeader(bytes, length);
}

void SetTopology(const ForeignTopology& topology, Manifest& manifest) {
  TopologyProto& proto = *manifest.mutable_topology();
  const auto ranks = [](int64_t number) {
    return static_cast<uint32_t>(number < 1 || number > INT32_MAX ? 1 : number);
  };
  proto.set_data_parallel(ranks(topology.data));
  proto.set_tensor_parallel(ranks(topology.tensor));
  proto.set_pipeline_parallel(ranks(topology.pipeline));
  proto.set_virtual_pipeline(ranks(topology.virtual_pipeline));
  proto.set_zero_stage(topology.zero_stage);
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

LayerName SplitLayer(std::string_view name) {
  constexpr int64_t kMaxLayers = 1'000'000;  // that a number in a name can stand for
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    int64_t layer = 0;
    if (!part.empty() && absl::ascii_isdigit(static_cast<unsigned char>(part[0])) &&
        absl::SimpleAtoi(View(part), &layer) && layer < kMaxLayers) {
      return {std::string(name.substr(0, begin)), layer, std::string(name.substr(end))};
    }
    begin = end + 1;
  }
  return {.before = std::string(name)};
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
