#ifndef TESSERA_TRAINER_STATE_SAVE_STORAGE_H_
#define TESSERA_TRAINER_STATE_SAVE_STORAGE_H_

// The storage of the folder `save`, to which a run saves and from which it resumes by itself.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "storage/open_storage.h"
#include "storage/storage.h"
#include "trainer/config/config.pb.h"

namespace tessera {

// Returns the options with which storages are opened whose names are in the settings.
OpenStorageOptions StoresOf(const CheckpointConfig& config);

// Returns whether the run saves: it has a folder `save`, and settings that say when.
bool Saves(const TrainConfig& config);

// Opens the storage. With async_upload, it is a TieredStorage over StagingFolderOf(), which may
// hold only staged files of this `save`: FailedPrecondition otherwise. `create_root` is for
// writing; files are then staged if `has_room` returns true for their size in bytes. Null: all
// files are.
absl::StatusOr<std::unique_ptr<Storage>> OpenSaveStorage(
    const CheckpointConfig& config, bool create_root = false,
    std::function<bool(uint64_t size_bytes)> has_room = nullptr);

// Returns the folder of this user and this `save` in async_upload_tmp_folder, or in memory. Buckets
// of one name in stores of different addresses (s3_endpoint, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL)
// have one each.
std::string StagingFolderOf(const CheckpointConfig& config);

// Returns the folder of replicas of this user and this `save` in replicate_folder, or in memory:
// one for the machine or, with replicate_ranks_per_node, for the ranks that count as one.
std::string ReplicaFolder(const CheckpointConfig& config, int rank);

// Returns InvalidArgument if async_upload_tmp_folder, StagingFolderOf(), replicate_folder or
// ReplicaFolder() is, contains or lies in `save`, `load` or run_dir.
absl::Status CheckFoldersApart(const TrainConfig& config);

// Deletes staged files that do not match the checkpoint. Call before a load from a storage of
// OpenSaveStorage(). Returns a sentence about the staged files that will be read; empty if none
// will be read, or without async_upload.
absl::StatusOr<std::string> CheckStagedFiles(const CheckpointConfig& config,
                                             const ckpt::Checkpoint& checkpoint);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVE_STORAGE_H_
