#ifndef TESSERA_BASE_THREADS_H_
#define TESSERA_BASE_THREADS_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// std::thread's constructor throws where the system has no thread left (the limit of a control
// group or a user, or memory), and a vector of running threads that is destroyed on the way out
// ends the process. So every thread of ours is started here.

// ResourceExhausted, with the system's reason, where there is no thread to be had.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

// Up to `count` threads that run body(0), body(1), ...: as many as can be had, none included. The
// caller does the work of those that are missing, and joins the others. `body` is copied.
std::vector<std::thread> StartThreads(int count, const std::function<void(int)>& body);

// For tests: `left` more threads can be started by this process; negative: no limit.
void LimitThreads(int left);

}  // namespace tessera

#endif  // TESSERA_BASE_THREADS_H_
