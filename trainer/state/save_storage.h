#ifndef TESSERA_TRAINER_STATE_SAVE_STORAGE_H_
#define TESSERA_TRAINER_STATE_SAVE_STORAGE_H_

// The folder `save`, to which a run saves and from which it resumes by itself, and its copies in
// memory.

#include <string>

#include "absl/status/status.h"
#include "storage/open_storage.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Returns the options with which storages are opened whose names are in the settings.
OpenStorageOptions StoresOf(const CheckpointConfig& config);

// Returns whether the run saves: it has a folder `save`, and settings that say when.
bool Saves(const TrainConfig& config);

// Returns the staging folder of the manager of `save`, with async_upload.
std::string StagingFolderOf(const CheckpointConfig& config);

// Returns the folder of replicas of this user and this `save` in replicate_folder, or in memory:
// one for the machine or, with replicate_ranks_per_node, for the ranks that count as one.
std::string ReplicaFolder(const CheckpointConfig& config, int rank);

// Adds the name of the setting to an error of opening `save`; with async_upload, the error may be
// that of another folder.
absl::Status OfSave(const CheckpointConfig& config, const absl::Status& status);

// Returns InvalidArgument if async_upload_tmp_folder, StagingFolderOf(), replicate_folder or
// ReplicaFolder() is, contains or lies in `save`, `load` or run_dir.
absl::Status CheckFoldersApart(const TrainConfig& config);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVE_STORAGE_H_
