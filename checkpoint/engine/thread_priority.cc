#include "checkpoint/engine/thread_priority.h"

#include <linux/ioprio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

namespace tessera::ckpt {

void LowerThreadPriority(int nice, bool idle_io_priority) {
  // On Linux both concern the calling thread alone, whatever their names say.
  const id_t thread = static_cast<id_t>(syscall(SYS_gettid));
  errno = 0;
  const int current = getpriority(PRIO_PROCESS, thread);
  if (nice > 0 && errno == 0) setpriority(PRIO_PROCESS, thread, current + nice);
  if (idle_io_priority) {
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, thread, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
  }
}

double ThreadProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace tessera::ckpt
