#ifndef TESSERA_CHECKPOINT_INTERNAL_READ_LOCK_H_
#define TESSERA_CHECKPOINT_INTERNAL_READ_LOCK_H_

#include <string_view>
#include <utility>

#include "storage/storage.h"

namespace tessera::ckpt {

// Marks a checkpoint as being read, so that neither retention nor Prune() deletes it. The mark is a
// shared advisory lock on the directory, which the system releases however the process ends. It
// works in local file systems that have such locks on directories; elsewhere, as in object stores
// and on most network file systems, nothing is marked. Neither waits nor writes anything.
//
// Take the lock before reading the manifest: a manifest that exists afterwards stays.
class ReadLock {
 public:
  // Makes a lock that holds nothing.
  ReadLock() = default;
  ReadLock(const Storage& storage, std::string_view checkpoint_dir);
  ReadLock(ReadLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ReadLock& operator=(ReadLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ReadLock();

  // Returns whether the checkpoint is marked. False where the place has no such locks, or while the
  // checkpoint is being deleted.
  bool holds() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INTERNAL_READ_LOCK_H_
