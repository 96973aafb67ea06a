#ifndef TESSERA_BASE_IS_WAITING_H_
#define TESSERA_BASE_IS_WAITING_H_

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace tessera {

// Returns whether a thread of this process waits for another one, or has ended, for tests of what
// waits. One that lacks a processor does not wait. `thread`: its gettid().
inline bool IsWaiting(pid_t thread) {
  // "12 (name) S ..."
  const auto stat = ReadWholeFile(absl::StrCat("/proc/self/task/", thread, "/stat"));
  return !stat.ok() || stat->find(") S ") != stat->npos;
}

}  // namespace tessera

#endif  // TESSERA_BASE_IS_WAITING_H_
