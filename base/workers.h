#ifndef TESSERA_BASE_WORKERS_H_
#define TESSERA_BASE_WORKERS_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace tessera {

// Runs task(worker, i) for i in [0, count), started in ascending order by `workers` threads, or as
// many as the system permits, one of them the caller's. After an error no further task starts; the
// error of the lowest i is returned. A worker runs one task at a time, and worker numbers are below
// max(1, min(workers, count)), so that each can own a buffer.
absl::Status RunTasks(int workers, size_t count,
                      const std::function<absl::Status(int worker, size_t i)>& task);

}  // namespace tessera

#endif  // TESSERA_BASE_WORKERS_H_
