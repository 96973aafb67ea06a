#ifndef TESSERA_BASE_IS_WAITING_H_
#define TESSERA_BASE_IS_WAITING_H_

#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace tessera {

// Returns whether a thread of this process sleeps, as one does that waits for another, or has
// ended, for tests of what waits. One that lacks a processor is awake. `thread`: its gettid().
inline bool IsWaiting(pid_t thread) {
  // "12 (name) S ..."
  const auto stat = ReadWholeFile(absl::StrCat("/proc/self/task/", thread, "/stat"));
  return stat.ok() ? stat->find(") S ") != stat->npos : absl::IsNotFound(stat.status());
}

}  // namespace tessera

#endif  // TESSERA_BASE_IS_WAITING_H_
