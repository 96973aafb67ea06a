#ifndef TESSERA_TRAINER_APP_LAUNCH_H_
#define TESSERA_TRAINER_APP_LAUNCH_H_

// How this process came to be, before any message passing is started.

#include <string>

#include "absl/status/status.h"
#include "trainer/parallel/topology.h"

namespace tessera {

struct Launch {
  // A launcher (mpirun, srun) has started this process as one of a world.
  bool in_world = false;
  // In that world, as far as the environment tells.
  int rank = 0;
  // What rank 0's output ends up on: the columns of a terminal, 0 for anything else; only known
  // from a launcher that says so. Negative: this process's own stdout is the answer.
  int terminal_columns = -1;
};

// From the environment that Open MPI's mpirun, Slurm's srun and trainer/configs/launch.py set.
Launch DetectLaunch();

// Whether as many processes have been started as the topology needs. InvalidArgument: one sentence
// with the number that mpirun needs.
absl::Status CheckWorldSize(const Topology& topology, int processes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_LAUNCH_H_
