#include "storage/lock/locked_fd.h"

#include <pthread.h>
#include <unistd.h>

#include <set>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace tessera {
namespace {

// The descriptors that a child closes.
struct OpenFds {
  Mutex mutex;
  std::set<int> fds ABSL_GUARDED_BY(mutex);
};

OpenFds& Open() {
  static OpenFds* const open = new OpenFds;  // until the end of the process
  return *open;
}

// Held by the thread that forks, so that the child finds a consistent set.
void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { Open().mutex.lock(); }
void AfterForkInParent() ABSL_NO_THREAD_SAFETY_ANALYSIS { Open().mutex.unlock(); }
void AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (const int fd : Open().fds) ::close(fd);
  Open().fds.clear();
  Open().mutex.unlock();
}

}  // namespace

LockedFd::LockedFd(absl::FunctionRef<ScopedFd()> open) : owner_(::getpid()) {
  static const int handlers = ::pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(handlers);
  const MutexLock lock(&Open().mutex);
  ScopedFd fd = open();
  if (!fd.valid()) return;
  Open().fds.insert(fd.get());
  fd_ = std::move(fd);
}

bool LockedFd::valid() const { return fd_.valid() && owner_ == ::getpid(); }

LockedFd::~LockedFd() {
  if (!fd_.valid()) return;
  if (owner_ != ::getpid()) {
    fd_.release();  // closed by AfterForkInChild(), and perhaps another's by now
    return;
  }
  const MutexLock lock(&Open().mutex);
  Open().fds.erase(fd_.get());
  fd_.Close();
}

}  // namespace tessera
