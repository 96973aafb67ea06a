#ifndef TESSERA_STORAGE_LOCK_LEASE_H_
#define TESSERA_STORAGE_LOCK_LEASE_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/lock/folder_lock.h"
#include "storage/storage.h"

namespace tessera {

// Implements FolderLock::Acquire() for an object store.
absl::StatusOr<std::unique_ptr<FolderLock>> AcquireLease(std::unique_ptr<Storage> storage,
                                                         const FolderLock::Options& options);

// Returns "HOST, pid N" of this process, for messages.
std::string HolderName();

// Returns a name that no other process has or had, of this boot of this machine; empty if the
// system does not tell.
std::string ProcessIdentity(pid_t pid);

// Returns whether the process with this identity is known to have ended: `proc`, which is "/proc",
// has another process in its place, or the system knows none. False if it cannot be told.
bool IsKnownToBeDead(const std::string& identity, const std::string& proc);

}  // namespace tessera

#endif  // TESSERA_STORAGE_LOCK_LEASE_H_
