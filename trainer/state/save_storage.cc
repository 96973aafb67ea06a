#include "trainer/state/save_storage.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/program.h"
#include "base/status_macros.h"
#include "checkpoint/include/checkpoint_manager.h"
#include "storage/tiered/staging_folder.h"

namespace tessera {
namespace {

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
      checkpoint.save_last_step() || checkpoint.save_on_exception() ||
      checkpoint.save_interval() > 0 || checkpoint.non_persistent_save_interval() > 0 ||
      checkpoint.save_interval_minutes() > 0 || checkpoint.save_continuously() ||
      config.training().exit_interval() > 0 || config.training().exit_duration_in_mins() > 0 ||
      !checkpoint.stop_file_path().empty();
  return ever && !checkpoint.save().empty() && checkpoint.enable_save_ckpt() &&
         config.training().train_iters() > 0;
}

OpenStorageOptions StoresOf(const CheckpointConfig& config) {
  return {.s3_endpoint = config.s3_endpoint(),
          .note = [](const std::string& note) { PrintError("train", note); }};
}

std::string StagingFolderOf(const CheckpointConfig& config) {
  return ckpt::StagingFolderOf(config.save(), config.async_upload_tmp_folder(), StoresOf(config));
}

std::string ReplicaFolder(const CheckpointConfig& config, int rank) {
  std::string suffix = "_replicas";
  if (config.replicate_ranks_per_node() > 0) {
    absl::StrAppend(&suffix, "-node", rank / config.replicate_ranks_per_node());
  }
  return LocalFolderFor(config.save(), StoresOf(config), config.replicate_folder(), suffix);
}

absl::Status OfSave(const CheckpointConfig& config, const absl::Status& status) {
  if (status.ok() || config.async_upload()) return status;
  return WithMessage(status, absl::StrCat("save: ", status.message()));
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

}  // namespace tessera
