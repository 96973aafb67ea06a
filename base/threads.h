#ifndef TESSERA_BASE_THREADS_H_
#define TESSERA_BASE_THREADS_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// std::thread's constructor throws where the system cannot start a thread (the limit of a control
// group or a user, or memory), and destroying a vector of running threads ends the process.
// Therefore every thread of this program is started with these functions.

// ResourceExhausted, with the system's reason, if no thread can be started.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

// Starts up to `count` threads that run body(0), body(1), ...: as many as possible, perhaps none.
// The caller does the work of the missing ones, and joins the others. `body` is copied.
std::vector<std::thread> StartThreads(int count, const std::function<void(int)>& body);

// For tests: `left` more threads can be started by this process; negative: unlimited.
void LimitThreads(int left);

}  // namespace tessera

#endif  // TESSERA_BASE_THREADS_H_
