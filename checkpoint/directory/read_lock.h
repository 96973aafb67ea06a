#ifndef TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_
#define TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_

#include <string_view>

#include "checkpoint/include/read_lock.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// The exclusive counterpart of a ReadLock, held while a checkpoint is being deleted.
class RemovalLock {
 public:
  RemovalLock(const Storage& storage, std::string_view checkpoint_dir);
  RemovalLock(const RemovalLock&) = delete;
  RemovalLock& operator=(const RemovalLock&) = delete;
  ~RemovalLock();

  // Whether the lock was refused, because a reader holds the checkpoint.
  bool refused() const { return refused_; }

 private:
  int fd_ = -1;
  bool refused_ = false;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_READ_LOCK_H_
