#ifndef TESSERA_BASE_THREADS_H_
#define TESSERA_BASE_THREADS_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// std::thread's constructor throws where the system cannot start a thread (the limit of a control
// group or a user, or memory), and destroying a vector of running threads ends the process.
// Therefore every thread of this program is started with the functions below.

// Starts a thread. Returns ResourceExhausted, with the system's reason, if none can be started.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

// Starts up to `count` threads that run body(0), body(1), ...: as many as possible, perhaps none.
// The caller does the work of the missing ones, and joins the others. `body` is copied.
std::vector<std::thread> StartThreads(int count, const std::function<void(int)>& body);

// Lets this process start `left` more threads, for tests; negative: unlimited.
void LimitThreads(int left);

// Runs task(worker, i) for i in [0, count), started in ascending order by `workers` threads, or as
// many as the system permits, one of them the caller's. After an error no further task starts; the
// error of the lowest i is returned. A worker runs one task at a time, and worker numbers are below
// max(1, min(workers, count)), so that each can own a buffer.
absl::Status RunTasks(int workers, size_t count,
                      const std::function<absl::Status(int worker, size_t i)>& task);

// Lowers the calling thread's processor priority by `nice` steps. Threads that it starts inherit
// it. Best effort: if the system refuses, the priority stays unchanged.
void LowerThreadPriority(int nice);

// Returns the processor time that the calling thread has used.
double ThreadProcessorSeconds();

}  // namespace tessera

#endif  // TESSERA_BASE_THREADS_H_
