#ifndef TESSERA_BASE_MUTEX_H_
#define TESSERA_BASE_MUTEX_H_

#include <condition_variable>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"

namespace tessera {

// A reader-writer lock that the compiler's thread-safety analysis understands, as absl::Mutex is,
// and ThreadSanitizer too, which cannot see into the uninstrumented absl::Mutex of a Debian system
// and would report every access that one guards as a race.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void lock_shared() ABSL_SHARED_LOCK_FUNCTION() { mutex_.lock_shared(); }
  void unlock_shared() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->lock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->unlock(); }

 private:
  Mutex* const mutex_;
};

class ABSL_SCOPED_LOCKABLE ReaderMutexLock {
 public:
  explicit ReaderMutexLock(Mutex* mutex) ABSL_SHARED_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->lock_shared();
  }
  ReaderMutexLock(const ReaderMutexLock&) = delete;
  ReaderMutexLock& operator=(const ReaderMutexLock&) = delete;
  ~ReaderMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->unlock_shared(); }

 private:
  Mutex* const mutex_;
};

// Waits for another thread's change; to be called in a loop that tests for it.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { changed_.wait(*mutex); }
  void NotifyOne() { changed_.notify_one(); }

 private:
  std::condition_variable_any changed_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_MUTEX_H_
