#ifndef TESSERA_TRAINER_APP_LAUNCH_H_
#define TESSERA_TRAINER_APP_LAUNCH_H_

// How this process was started, before any message passing.

#include "absl/status/status.h"
#include "layout/topology.h"

namespace tessera {

struct Launch {
  // A launcher (mpirun, srun) has started this process as one of a world.
  bool in_world = false;
  // The rank in that world, as far as the environment provides it.
  int rank = 0;
  // Where rank 0's output goes: the number of columns of a terminal, 0 for anything else; known
  // only from a launcher that provides it. Negative: determined by this process's own stdout.
  int terminal_columns = -1;
};

// From the environment that Open MPI's mpirun, Slurm's srun and trainer/configs/launch.py set.
Launch DetectLaunch();

// Checks that as many processes have been started as the topology needs. InvalidArgument: one
// sentence with the number that mpirun needs.
absl::Status CheckWorldSize(const Topology& topology, int processes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_LAUNCH_H_
