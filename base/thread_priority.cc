#include "base/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

namespace tessera {
namespace {

// ioprio_set(2), whose header <linux/ioprio.h> is not valid C++ in every version.
constexpr int kWhoProcess = 1;
constexpr int kIdleClass = 3;
constexpr int kClassShift = 13;

}  // namespace

void LowerThreadPriority(int nice, bool idle_io_priority) {
  // On Linux both apply to the calling thread only, despite their names.
  const id_t thread = static_cast<id_t>(syscall(SYS_gettid));
  errno = 0;
  const int current = getpriority(PRIO_PROCESS, thread);
  if (nice > 0 && errno == 0) setpriority(PRIO_PROCESS, thread, current + nice);
  if (idle_io_priority) {
    syscall(SYS_ioprio_set, kWhoProcess, thread, kIdleClass << kClassShift);
  }
}

double ThreadProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace tessera
