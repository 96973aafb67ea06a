#include "checkpoint/include/checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/read_lock.h"
#include "checkpoint/load/load.h"
#include "checkpoint/plan/rank_states.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "layout/box.h"
#include "storage/storage.h"

namespace tessera::ckpt {
namespace {

TensorInfo ToInfo(const LogicalTensor& tensor) {
  return {.name = tensor.name(),
          .role = FromProto(tensor.role()),
          .dtype = FromProto(tensor.dtype()),
          .global_shape = GlobalShape(tensor),
          .alias_of = tensor.alias_of()};
}

// Owns nothing.
std::shared_ptr<Storage> Borrow(Storage& storage) {
  return std::shared_ptr<Storage>(std::shared_ptr<Storage>(), &storage);
}

// Names of data files, perhaps below a rolling slot:
// "step-00000042/model-00001-of-00004-0123abcd.safetensors".
constexpr char kDataFilePattern[] =
    "([^/]+/|rolling-[01]/[0-9a-f]{8}/)?step-[0-9]{8,}[^/]*/"
    "[a-z]+-[0-9]{5,}-of-[0-9]{5,}-[0-9a-f]{8}\\.safetensors";

}  // namespace

OpenStorageOptions ForSaving(OpenStorageOptions options) {
  options.create_root = true;
  options.own_uploads = kDataFilePattern;
  return options;
}

absl::StatusOr<Checkpoint> Checkpoint::Read(std::shared_ptr<Storage> storage,
                                            std::string_view directory) {
  auto reading = std::make_shared<const ReadLock>(*storage, directory);
  TESSERA_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(*storage, directory));
  return Checkpoint(std::move(storage), directory, std::move(manifest), std::move(reading));
}

absl::StatusOr<Checkpoint> Checkpoint::Open(std::string_view name,
                                            const OpenStorageOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, OpenStorage(name, options));
  return Read(std::move(storage), "");
}

absl::StatusOr<Checkpoint> Checkpoint::Open(Storage& storage, std::string_view checkpoint_dir) {
  return Read(Borrow(storage), checkpoint_dir);
}

Checkpoint::Checkpoint(std::shared_ptr<Storage> storage, std::string_view directory,
                       Manifest manifest, std::shared_ptr<const ReadLock> reading,
                       std::vector<std::vector<uint32_t>> readers)
    : storage_(std::move(storage)),
      directory_(directory),
      manifest_(std::make_shared<const Manifest>(std::move(manifest))),
      names_(std::make_shared<const NamedTensors>(*manifest_)),
      reading_(std::move(reading)),
      readers_(std::move(readers)) {}

Checkpoint::Checkpoint(Storage& storage, std::string_view directory, Manifest manifest)
    : Checkpoint(Borrow(storage), directory, std::move(manifest)) {}

int64_t Checkpoint::step() const { return manifest_->trainer().step(); }

Metadata Checkpoint::metadata() const {
  const auto& extra = manifest_->trainer().extra();
  return {.program = manifest_->producer().program(), .entries = {extra.begin(), extra.end()}};
}

std::vector<TensorInfo> Checkpoint::tensors() const {
  std::vector<TensorInfo> tensors;
  for (const LogicalTensor& tensor : manifest_->tensors()) tensors.push_back(ToInfo(tensor));
  return tensors;
}

absl::StatusOr<TensorInfo> Checkpoint::Find(std::string_view name) const {
  if (const LogicalTensor* found = names_->Find(name)) return ToInfo(*found);
  return absl::NotFoundError(absl::StrCat("no tensor ", std::string(name), " in ",
                                          storage_->Describe(directory_), ", which has ",
                                          manifest_->tensors_size()));
}

absl::StatusOr<Box> Checkpoint::BoxOf(std::string_view name, const std::optional<Box>& box) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorInfo tensor, Find(name));
  if (!box.has_value()) return WholeBox(tensor.global_shape);
  const absl::Status inside = CheckBoxInside(tensor.global_shape, *box);
  if (inside.ok()) return *box;
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": ", inside.message()));
}

absl::StatusOr<LoadReport> Checkpoint::Load(const StateDict& state,
                                            const LoadOptions& options) const {
  return LoadWithManifest(*storage_, directory_, *manifest_, state, options, /*buffers=*/nullptr,
                          readers_);
}

absl::StatusOr<VerifyReport> Checkpoint::Verify(const VerifyOptions& options) const {
  return VerifyCheckpoint(*storage_, directory_, options);
}

absl::Status Checkpoint::LoadTensor(std::string_view name, const Shard& destination,
                                    const LoadOptions& options) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorInfo saved, Find(name));
  ShardedTensor wanted = {
      .name = saved.name, .role = saved.role, .global_shape = saved.global_shape};
  wanted.shards = {destination};
  if (destination.dtype == DType::kUnspecified) wanted.dtype = saved.dtype;
  LoadOptions alone = options;
  alone.group = nullptr;
  const Manifest part = names_->ManifestOf({&saved.name, 1});
  return LoadWithManifest(*storage_, directory_, part, {{std::move(wanted)}}, alone).status();
}

absl::StatusOr<CheckpointFolder> CheckpointFolder::Open(std::string_view name,
                                                        const OpenStorageOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                           OpenStorage(name, options.create_root ? ForSaving(options) : options));
  return CheckpointFolder(std::move(storage));
}

CheckpointFolder::CheckpointFolder(Storage& storage) : storage_(Borrow(storage)) {}

absl::StatusOr<SaveReport> CheckpointFolder::Save(int64_t step, const StateDict& state,
                                                  const SaveOptions& options,
                                                  const Metadata& metadata) const {
  return SaveNow(*storage_, {.step = step, .metadata = metadata}, state, options);
}

absl::StatusOr<std::vector<CheckpointInfo>> CheckpointFolder::List(
    std::vector<CheckpointInfo>* unreadable) const {
  return ListCommitted(*storage_, "", unreadable);
}

absl::StatusOr<std::vector<CheckpointInfo>> CheckpointFolder::ListUncommitted() const {
  return ckpt::ListUncommitted(*storage_, "");
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::FindLatest() const {
  std::vector<CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> checkpoints, List(&unreadable));
  if (!unreadable.empty() &&
      (checkpoints.empty() || checkpoints.back().step < unreadable.back().step)) {
    return unreadable.back().committed.status();
  }
  if (checkpoints.empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", storage_->Describe("")));
  }
  return std::move(checkpoints.back());
}

absl::StatusOr<Checkpoint> CheckpointFolder::Latest() const {
  TESSERA_ASSIGN_OR_RETURN(const CheckpointInfo latest, FindLatest());
  return Checkpoint::Read(storage_, latest.directory);
}

absl::StatusOr<Checkpoint> CheckpointFolder::At(int64_t step) const {
  return Checkpoint::Read(storage_, StepDirectoryName(step));
}

absl::StatusOr<VerifyReport> CheckpointFolder::Verify(std::string_view directory,
                                                      const VerifyOptions& options) const {
  return VerifyCheckpoint(*storage_, directory, options);
}

absl::Status CheckpointFolder::Prune(int keep, std::optional<int64_t> saved_step) const {
  const auto check = [&](const CheckpointInfo& dir) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const VerifyReport report,
                             VerifyCheckpoint(*storage_, dir.directory, {.contents = false}));
    return report.damage.empty() ? absl::OkStatus() : absl::DataLossError(dir.directory);
  };
  return PruneStepDirectories(*storage_, "", keep, saved_step, check);
}

}  // namespace tessera::ckpt
