#ifndef TESSERA_CHECKPOINT_INTERNAL_READ_LOCK_H_
#define TESSERA_CHECKPOINT_INTERNAL_READ_LOCK_H_

// Implemented in checkpoint/directory/read_lock.cc.

#include <memory>
#include <string_view>

#include "storage/storage.h"

namespace tessera {
class LockedFd;  // storage/lock/locked_fd.h
}

namespace tessera::ckpt {

// Marks a checkpoint as being read, so that neither retention nor Prune() deletes it. The mark is a
// shared advisory lock on the directory, which the system releases however the process ends. A
// process that it forks does not have the mark. It works in local file systems that have such locks
// on directories; elsewhere, as in object stores and on most network file systems, nothing is
// marked. Neither waits nor writes anything.
//
// Take the lock before reading the manifest: a manifest that exists afterwards stays.
class ReadLock {
 public:
  // Makes a lock that holds nothing.
  ReadLock() = default;
  ReadLock(const Storage& storage, std::string_view checkpoint_dir);

  // Returns whether the checkpoint is marked. False where the place has no such locks, or while the
  // checkpoint is being deleted, and in a forked process.
  bool holds() const;

 private:
  std::shared_ptr<const LockedFd> fd_;  // null: holds nothing
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INTERNAL_READ_LOCK_H_
