#ifndef TESSERA_COMM_MPI_MPI_WORLD_H_
#define TESSERA_COMM_MPI_MPI_WORLD_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace tessera {

// The world of processes that mpirun, srun or another launcher compatible with Open MPI has
// started. A process that was started alone is a world of one.
//
// Threads: as Communicator. MPI is initialised for serialized calls; nothing else in the process
// may call MPI while communicators are in use.
class MpiWorld {
 public:
  // Initialises MPI; once per process. Every process of the job calls it.
  static absl::StatusOr<std::unique_ptr<MpiWorld>> Create(CommOptions options = {});
  // Precondition: Finish() has been called.
  ~MpiWorld();

  Communicator& world();

  // Ends this process's part in the run and returns the exit code of a successful run. Every rank
  // calls Finish(), and must hold no other communicator. With an error, or if another rank fails,
  // Finish() ends the process instead, with exit code 2 for InvalidArgument and 1 otherwise. The
  // lowest rank whose error was its own prints "rank 2: MESSAGE", and the job is aborted. A failed
  // run ends within a few seconds, whatever state the other processes are in.
  int Finish(const absl::Status& status);

 private:
  class Impl;
  explicit MpiWorld(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Runs a rank: creates the world, calls `rank_main`, and finishes. Returns the exit code.
int RunMpiRank(CommOptions options, const std::function<absl::Status(Communicator&)>& rank_main);

}  // namespace tessera

#endif  // TESSERA_COMM_MPI_MPI_WORLD_H_
