#ifndef TESSERA_COMPUTE_COMM_THREADS_THREAD_WORLD_H_
#define TESSERA_COMPUTE_COMM_THREADS_THREAD_WORLD_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "compute/comm/communicator.h"

namespace tessera {

// A world whose ranks are threads of this process: for tests and small runs.
//   ThreadWorld world(4);
//   absl::Status status = world.Run([](Communicator& comm) { return comm.Barrier(); });
//
// Threads: Run() is called from one thread at a time. Cost: a message is one memcpy, made by
// whichever side arrives second; waiting ranks sleep.
class ThreadWorld {
 public:
  // Precondition: size > 0.
  explicit ThreadWorld(int size, CommOptions options = {});
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  // Calls `rank_main` on a thread for each rank and returns when all have returned. The first rank
  // that returns an error ends the waits of all others with it. Returns that error, "rank 2: "
  // before its message; OK when every rank returned OK. Each call is a new world.
  absl::Status Run(const std::function<absl::Status(Communicator&)>& rank_main);

  // The status that each rank returned from the last Run().
  const std::vector<absl::Status>& statuses() const { return statuses_; }

 private:
  const int size_;
  const CommOptions options_;
  std::vector<absl::Status> statuses_;
};

}  // namespace tessera

#endif  // TESSERA_COMPUTE_COMM_THREADS_THREAD_WORLD_H_
