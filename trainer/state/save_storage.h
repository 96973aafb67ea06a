#ifndef TESSERA_TRAINER_STATE_SAVE_STORAGE_H_
#define TESSERA_TRAINER_STATE_SAVE_STORAGE_H_

// The storage of the folder `save`: where a run saves, and what it resumes from by itself.

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

// How storages are opened whose names are in the settings.
OpenStorageOptions StoresOf(const CheckpointConfig& config);

// Whether the run saves: it has a folder to save to and has not been told to leave it alone.
bool Saves(const TrainConfig& config);

// With async_upload, a TieredStorage over NearbyFolder(), where nothing but copies of this `save`
// may be: FailedPrecondition. For writing, `create_root`; then files are copied if `has_room`
// returns true for their size in bytes. Null: all files are.
absl::StatusOr<std::unique_ptr<Storage>> OpenSaveStorage(
    const CheckpointConfig& config, bool create_root = false,
    std::function<bool(uint64_t size_bytes)> has_room = nullptr);

// This user's and this `save`'s own folder in async_upload_tmp_folder, or in memory. Buckets of one
// name in stores of different addresses (s3_endpoint, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL) have
// one each.
std::string NearbyFolder(const CheckpointConfig& config);

// The same in replicate_folder, or in memory, for replicas: of the machine or, with
// replicate_ranks_per_node, of the ranks that count as one.
std::string ReplicaFolder(const CheckpointConfig& config, int rank);

// InvalidArgument where async_upload_tmp_folder, or NearbyFolder(), is, contains or lies in `save`,
// `load` or run_dir; likewise replicate_folder, or ReplicaFolder().
absl::Status CheckNearbyFolder(const TrainConfig& config);

// Before a load from a storage of OpenSaveStorage(): deletes copies that are not what the
// checkpoint describes. Returns a sentence about those that will be read; empty
// if no copy will be read, or without async_upload.
absl::StatusOr<std::string> CheckNearbyCopies(const CheckpointConfig& config,
                                              const ckpt::Checkpoint& checkpoint);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_SAVE_STORAGE_H_
