#include "trainer/state/save_storage.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "checkpoint/include/saved_checkpoints.h"
#include "storage/tiered/staging_folder.h"
#include "storage/tiered/tiered_storage.h"

namespace tessera {
namespace {

// Returns the address of the store that OpenStorage() opens for a name without one. Empty for
// Amazon's, and for one that a profile names.
std::string Endpoint(const CheckpointConfig& config) {
  if (!config.s3_endpoint().empty()) return config.s3_endpoint();
  for (const char* const name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

// Returns the name of a folder in `parent`, or in memory, that belongs to this user and this
// `save`.
std::string OwnFolder(const CheckpointConfig& config, const std::string& parent,
                      const std::string& suffix) {
  const std::optional<std::string> path = LocalPathOfName(config.save());
  const std::string job = path.has_value() ? std::filesystem::absolute(*path).string()
                                           : absl::StrCat(Endpoint(config), config.save());
  return absl::StrFormat("%s/tessera-%d-%08x%s", parent.empty() ? "/dev/shm" : parent, geteuid(),
                         Crc32c(job), suffix);
}

// InvalidArgument where a folder for copies in memory, which a setting names or not, is, contains
// or lies in one of the run's.
absl::Status CheckApart(const TrainConfig& config, const char* setting, const std::string& given,
                        const std::string& own) {
  const std::string& folder = given.empty() ? own : given;
  for (const auto& [name, value] : {std::pair("save", config.checkpoint().save()),
                                    std::pair("load", config.checkpoint().load()),
                                    std::pair("run_dir", config.output().run_dir())}) {
    const std::optional<std::string> path = LocalPathOfName(value);
    if (value.empty() || !path.has_value()) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool overlap, FoldersOverlap(folder, *path));
    if (!overlap) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(setting, "=", folder, " and ", name, "=", value,
                     ": one of them is, or contains, the other; name a folder of its own"));
  }
  return absl::OkStatus();
}

}  // namespace

bool Saves(const TrainConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint();
  const bool ever =
      checkpoint.save_last_step() || checkpoint.save_interval() > 0 ||
      checkpoint.non_persistent_save_interval() > 0 || checkpoint.save_interval_minutes() > 0 ||
      checkpoint.save_continuously() || config.training().exit_interval() > 0 ||
      config.training().exit_duration_in_mins() > 0 || !checkpoint.stop_file_path().empty();
  return ever && !checkpoint.save().empty() && checkpoint.enable_save_ckpt() &&
         config.training().train_iters() > 0;
}

OpenStorageOptions StoresOf(const CheckpointConfig& config) {
  return {.s3_endpoint = config.s3_endpoint()};
}

absl::StatusOr<std::unique_ptr<Storage>> OpenSaveStorage(
    const CheckpointConfig& config, bool create_root,
    std::function<bool(uint64_t size_bytes)> has_room) {
  const OpenStorageOptions open = StoresOf(config);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> remote,
                           OpenStorage(config.save(), create_root ? ckpt::ForSaving(open) : open));
  if (!config.async_upload()) return remote;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> staging,
                           OpenStagingFolder(StagingFolderOf(config)));
  return std::make_unique<TieredStorage>(std::move(staging), std::move(remote),
                                         std::move(has_room));
}

std::string StagingFolderOf(const CheckpointConfig& config) {
  return OwnFolder(config, config.async_upload_tmp_folder(), "_tmp_ckpt");
}

std::string ReplicaFolder(const CheckpointConfig& config, int rank) {
  std::string suffix = "_replicas";
  if (config.replicate_ranks_per_node() > 0) {
    absl::StrAppend(&suffix, "-node", rank / config.replicate_ranks_per_node());
  }
  return OwnFolder(config, config.replicate_folder(), suffix);
}

absl::Status CheckFoldersApart(const TrainConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint();
  if (checkpoint.async_upload()) {
    TESSERA_RETURN_IF_ERROR(CheckApart(config, "async_upload_tmp_folder",
                                       checkpoint.async_upload_tmp_folder(),
                                       StagingFolderOf(checkpoint)));
  }
  if (!checkpoint.replicate_to_peers()) return absl::OkStatus();
  return CheckApart(config, "replicate_folder", checkpoint.replicate_folder(),
                    ReplicaFolder(checkpoint, 0));
}

absl::StatusOr<std::string> CheckStagedFiles(const CheckpointConfig& config,
                                             const ckpt::Checkpoint& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::StagedFiles staged,
      ckpt::DeleteDamagedStagedFiles(checkpoint.storage(), checkpoint.directory()));
  std::string sentence;
  if (staged.intact_bytes > 0) {
    sentence = absl::StrCat("reading ", HumanBytes(staged.intact_bytes), " of ",
                            checkpoint.storage().Describe(checkpoint.directory()),
                            " from copies in ", StagingFolderOf(config));
  }
  if (staged.deleted_files > 0) {
    absl::StrAppend(&sentence, sentence.empty() ? "" : "; ", staged.deleted_files,
                    " damaged copies are deleted");
  }
  return sentence;
}

}  // namespace tessera
