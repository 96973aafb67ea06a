#ifndef TESSERA_CHECKPOINT_REPLICAS_REPLICA_STORAGE_H_
#define TESSERA_CHECKPOINT_REPLICAS_REPLICA_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "checkpoint/collective/hosts.h"
#include "checkpoint/include/process_group.h"
#include "storage/forwarding_storage.h"
#include "storage/lock/folder_lock.h"

namespace tessera::ckpt {

// The number of hexadecimal digits in the name of a folder of replicas.
inline constexpr size_t kReplicasDigits = 16;

// Returns whether this is the name of a folder of replicas. Nothing else is deleted in a host's
// folder.
bool IsReplicasName(std::string_view name);

// The folder of one host, as the storage of a save that spreads its files over all hosts. Each rank
// finds its own files; rank 0, when it commits, also finds the files of the manifest, whose
// existence Spread() then ensures.
class ReplicaStorage final : public ForwardingStorage {
 public:
  // `lock` is the folder's lock on the rank that deletes files for its host, which confirms it
  // before it deletes; null on other ranks. It must outlive the storage.
  ReplicaStorage(Storage& folder, FolderLock* lock) : ForwardingStorage(folder), lock_(lock) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(std::string_view path,
                                                       uint64_t size_hint_bytes) override;
  // Begins a replica, on rank 0.
  absl::Status MakeDirectory(std::string_view path) override;
  absl::StatusOr<std::string> Write(std::string_view path, std::string_view contents,
                                    const WriteCondition& condition) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override;
  // Unimplemented, since the free space of one host says nothing about a checkpoint on all of them;
  // see CheckRoom().
  absl::StatusOr<uint64_t> FreeBytes() override { return Storage::FreeBytes(); }

  // Sets the replica (its directory) that stays when another one begins. Empty: none.
  absl::Status Keep(std::string directory);

  // Sends the files that this rank has written of a committed replica to its peer, receives the
  // files that others send to it, and writes the manifest. Afterwards, this replica is the one that
  // is kept. Collective; the same status on all ranks.
  absl::Status Spread(const std::string& directory, const Hosts& hosts, ProcessGroup& group,
                      absl::Duration timeout);

 private:
  // Makes the directory of a replica, unless this rank has begun that one. Each rank calls it
  // before it writes there.
  absl::Status Begin(std::string_view directory);
  absl::Status DeleteOthers(const std::string& also_kept);

  FolderLock* const lock_;
  Mutex begin_mutex_;  // taken before mutex_
  Mutex mutex_;
  std::string kept_ ABSL_GUARDED_BY(mutex_);
  std::string directory_ ABSL_GUARDED_BY(mutex_);            // being written
  std::set<std::string> written_ ABSL_GUARDED_BY(mutex_);    // names of files there, by this rank
  std::set<std::string> committed_ ABSL_GUARDED_BY(mutex_);  // names of files there, by all ranks
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_REPLICAS_REPLICA_STORAGE_H_
