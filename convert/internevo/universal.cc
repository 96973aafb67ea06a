#include "convert/internevo/universal.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "convert/core/foreign_layout.h"
#include "convert/dcp/read.h"
#include "convert/internevo/parameters.h"
#include "convert/internevo/run.h"

namespace tessera::ckpt::convert {
namespace {

constexpr std::string_view kModelFolder = "model";
constexpr std::string_view kOptimizerFolder = "optimizer";

// A tensor of DCP: which of a parameter's tensors it is.
struct Key {
  ForeignKind kind;
  std::string parameter;
};

Key ParseStateKey(const std::string& name, const ForeignKind& kind_of_fp32) {
  for (const ForeignKind& kind : {kForeignExpAvg, kForeignExpAvgSq}) {
    const std::string suffix = "." + kind.state;
    if (name.ends_with(suffix)) return {kind, name.substr(0, name.size() - suffix.size())};
  }
  return {kind_of_fp32, name};
}

// Tensors of a folder, whose files are relative to `folder`.
absl::StatusOr<std::vector<ForeignTensor>> ReadPart(Storage& storage, std::string_view folder,
                                                    std::string_view part) {
  const std::string path = JoinPath(folder, part);
  TESSERA_ASSIGN_OR_RETURN(ForeignCheckpoint stored, ReadDcp(storage, path));
  for (ForeignTensor& tensor : stored.tensors) {
    for (StoredPiece& piece : tensor.pieces) piece.file = JoinPath(path, piece.file);
  }
  return std::move(stored.tensors);
}

uint64_t StoredBytes(Storage& storage, const std::vector<ForeignTensor>& tensors) {
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

absl::Status AddTensor(const ForeignTensor& tensor, const Key& key,
                       const InternEvoParameters& parameters, ForeignTensorSet& set) {
  TESSERA_ASSIGN_OR_RETURN(const ForeignParameter* const parameter,
                           parameters.Find(key.parameter, tensor.shape, /*parts=*/1));
  for (const StoredPiece& piece : tensor.pieces) {
    TESSERA_RETURN_IF_ERROR(set.AddBox(*parameter, {}, key.kind, piece.box,
                                       {piece.file, piece.offset_bytes, tensor.dtype},
                                       piece.strides));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> IsInternEvoUniversal(Storage& storage, std::string_view folder) {
  // Other programs have a DCP folder "model", too.
  const auto config = storage.Open(JoinPath(folder, "model_config.pt"));
  if (absl::IsNotFound(config.status())) return false;
  TESSERA_RETURN_IF_ERROR(config.status());
  const absl::StatusOr<bool> found = IsDcp(storage, JoinPath(folder, kModelFolder));
  return absl::IsNotFound(found.status()) ? absl::StatusOr<bool>(false) : found;
}

absl::StatusOr<ForeignCheckpoint> ReadInternEvoUniversal(Storage& storage, std::string_view folder,
                                                         const ModelRules& rules) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ForeignTensor> weights,
                           ReadPart(storage, folder, kModelFolder));
  std::vector<ForeignTensor> states;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage.List(folder));
  if (std::ranges::find(names, std::string(kOptimizerFolder) + "/") != names.end()) {
    TESSERA_ASSIGN_OR_RETURN(states, ReadPart(storage, folder, kOptimizerFolder));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const InternEvoParameters parameters,
      InternEvoParameters::Read(storage, folder, rules, static_cast<int64_t>(weights.size()),
                                StoredBytes(storage, weights)));
  ForeignTensorSet set(parameters.model());
  bool rounded = false;
  for (const ForeignTensor& tensor : weights) {
    rounded = rounded || tensor.dtype != F32;
    TESSERA_RETURN_IF_ERROR(AddTensor(tensor, {kForeignWeight, tensor.name}, parameters, set));
  }
  for (const ForeignTensor& tensor : states) {
    const Key key = ParseStateKey(tensor.name, rounded ? kForeignMaster : kForeignWeight);
    TESSERA_RETURN_IF_ERROR(AddTensor(tensor, key, parameters, set));
  }
  if (const absl::Status complete = set.CheckComplete(); !complete.ok()) {
    return absl::DataLossError(absl::StrCat(storage.Describe(folder), ": ", complete.message()));
  }
  ForeignCheckpoint checkpoint = {.format = std::string(kInternEvo)};
  TESSERA_RETURN_IF_ERROR(DescribeInternEvoRun(storage, folder, checkpoint));
  *checkpoint.description.mutable_model() = parameters.model().config;
  if (set.has_states()) {
    set.DescribeOptimizer(kInternEvo, *checkpoint.description.mutable_optimizer());
  }
  checkpoint.tensors = std::move(set).Finish();
  return checkpoint;
}

}  // namespace tessera::ckpt::convert
