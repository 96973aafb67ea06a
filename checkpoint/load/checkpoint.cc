#include "checkpoint/include/checkpoint.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/read_lock.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/named_tensors.h"
#include "checkpoint/scan/verify.h"

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

}  // namespace

// What Checkpoint shares among its copies. Must not be moved: `names` refers to `manifest`.
struct OpenedCheckpoint {
  std::shared_ptr<Storage> storage;
  std::string directory;
  Manifest manifest;
  std::shared_ptr<const ReadLock> reading;  // may be null
  std::vector<RankList> readers;            // see CheckpointOfManifest()
  NamedTensors names{manifest};

  static Checkpoint HandleOf(std::shared_ptr<const OpenedCheckpoint> opened) {
    return Checkpoint(std::move(opened));
  }
};

Checkpoint CheckpointOfManifest(std::shared_ptr<Storage> storage, std::string_view directory,
                                Manifest manifest, std::shared_ptr<const ReadLock> reading,
                                std::vector<std::vector<uint32_t>> readers) {
  return OpenedCheckpoint::HandleOf(std::shared_ptr<const OpenedCheckpoint>(
      new OpenedCheckpoint{std::move(storage), std::string(directory), std::move(manifest),
                           std::move(reading), std::move(readers)}));
}

Checkpoint CheckpointOfManifest(Storage& storage, std::string_view directory, Manifest manifest) {
  return CheckpointOfManifest(Borrow(storage), directory, std::move(manifest));
}

absl::StatusOr<Checkpoint> OpenCheckpoint(std::shared_ptr<Storage> storage,
                                          std::string_view directory) {
  auto reading = std::make_shared<const ReadLock>(*storage, directory);
  TESSERA_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(*storage, directory));
  return CheckpointOfManifest(std::move(storage), directory, std::move(manifest),
                              std::move(reading));
}

absl::StatusOr<Checkpoint> Checkpoint::Open(std::string_view name,
                                            const OpenStorageOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, OpenStorage(name, options));
  return OpenCheckpoint(std::move(storage), "");
}

absl::StatusOr<Checkpoint> Checkpoint::Open(Storage& storage, std::string_view checkpoint_dir) {
  return OpenCheckpoint(Borrow(storage), checkpoint_dir);
}

Storage& Checkpoint::storage() const { return *opened_->storage; }

const std::string& Checkpoint::directory() const { return opened_->directory; }

const Manifest& Checkpoint::manifest() const { return opened_->manifest; }

bool Checkpoint::is_kept() const {
  return opened_->reading != nullptr && opened_->reading->holds();
}

int64_t Checkpoint::step() const { return manifest().trainer().step(); }

Metadata Checkpoint::metadata() const {
  const auto& extra = manifest().trainer().extra();
  return {.program = manifest().producer().program(), .entries = {extra.begin(), extra.end()}};
}

std::vector<TensorInfo> Checkpoint::tensors() const {
  std::vector<TensorInfo> tensors;
  for (const LogicalTensor& tensor : manifest().tensors()) tensors.push_back(ToInfo(tensor));
  return tensors;
}

absl::StatusOr<TensorInfo> Checkpoint::Find(std::string_view name) const {
  if (const LogicalTensor* found = opened_->names.Find(name)) return ToInfo(*found);
  return absl::NotFoundError(absl::StrCat("no tensor ", std::string(name), " in ",
                                          storage().Describe(directory()), ", which has ",
                                          manifest().tensors_size()));
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
  return LoadWithManifest(storage(), directory(), manifest(), state, options, /*buffers=*/nullptr,
                          opened_->readers);
}

absl::StatusOr<VerifyReport> Checkpoint::Verify(const VerifyOptions& options) const {
  return VerifyCheckpoint(storage(), directory(), options);
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
  const Manifest part = opened_->names.ManifestOf({&saved.name, 1});
  return LoadWithManifest(storage(), directory(), part, {{std::move(wanted)}}, alone).status();
}

}  // namespace tessera::ckpt
