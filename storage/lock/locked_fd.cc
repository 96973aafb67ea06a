#include "storage/lock/locked_fd.h"

#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <set>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace tessera {
namespace {

struct OpenFds {
  Mutex mutex;
  std::set<int> fds ABSL_GUARDED_BY(mutex);  // which a child closes
  int64_t forks ABSL_GUARDED_BY(mutex) = 0;
};

OpenFds& Open() {
  static OpenFds* const open = new OpenFds;  // until the end of the process
  return *open;
}

// Held by the thread that forks, so that the child finds a consistent set.
void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { Open().mutex.lock(); }
void AfterForkInParent() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  ++Open().forks;
  Open().mutex.unlock();
}
void AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (const int fd : Open().fds) ::close(fd);
  Open().fds.clear();
  Open().mutex.unlock();
}

int64_t Forks() {
  const MutexLock lock(&Open().mutex);
  return Open().forks;
}

}  // namespace

LockedFd::LockedFd(absl::FunctionRef<ScopedFd()> open) : owner_(::getpid()) {
  static const int handlers = ::pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(handlers);
  while (true) {
    const int64_t forks = Forks();
    ScopedFd fd = open();  // nothing is locked meanwhile: a file server may not answer
    if (!fd.valid()) return;
    const MutexLock lock(&Open().mutex);
    if (Open().forks != forks) continue;  // a child may have a copy
    Open().fds.insert(fd.get());
    fd_ = std::move(fd);
    return;
  }
}

bool LockedFd::valid() const { return fd_.valid() && owner_ == ::getpid(); }

LockedFd::~LockedFd() {
  if (!fd_.valid()) return;
  if (owner_ != ::getpid()) {
    fd_.release();  // closed by AfterForkInChild(), and perhaps another's by now
    return;
  }
  // A child that begins from now on has a copy without a lock.
  while (::flock(fd_.get(), LOCK_UN) != 0 && errno == EINTR) {
  }
  const MutexLock lock(&Open().mutex);
  Open().fds.erase(fd_.get());
}

}  // namespace tessera
