#ifndef TESSERA_CHECKPOINT_INCLUDE_READ_LOCK_H_
#define TESSERA_CHECKPOINT_INCLUDE_READ_LOCK_H_

#include <string_view>
#include <utility>

#include "storage/storage.h"

namespace tessera::ckpt {

// Marks a checkpoint as being read, so that neither retention nor Prune() deletes it: a shared
// advisory lock on its directory, which the system releases however the process ends. Takes effect
// in the file systems of this machine that have such locks on directories; elsewhere, as in object
// stores and on most network file systems, nothing is marked. Neither waits nor writes anything.
//
// Take it before reading the manifest: a manifest that is there afterwards stays.
class ReadLock {
 public:
  // Holds nothing.
  ReadLock() = default;
  ReadLock(const Storage& storage, std::string_view checkpoint_dir);
  ReadLock(ReadLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ReadLock& operator=(ReadLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ReadLock();

 private:
  int fd_ = -1;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_READ_LOCK_H_
