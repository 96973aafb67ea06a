#ifndef TESSERA_TRAINER_APP_LAUNCH_H_
#define TESSERA_TRAINER_APP_LAUNCH_H_

// How this process was started, before any message passing.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "compute/device/compute_devices.h"
#include "layout/topology.h"
#include "trainer/config/config.pb.h"

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

// Where other ranks write what rank 0 prints on the terminal: RUN_DIR/rank-00003.log, or, without a
// run_dir, nowhere. Only one rank prints for the user; LOG(ERROR) messages reach the terminal from
// any rank.
class RankOutput {
 public:
  // Creates the folder; appends to an existing file. InvalidArgument naming run_dir where it cannot
  // be written. From here on, until the end of the process, glog's messages go there.
  static absl::StatusOr<std::unique_ptr<RankOutput>> Open(const std::string& run_dir, int rank);

  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;
  ~RankOutput();

  std::FILE* file() { return file_; }

 private:
  class LogFile;
  explicit RankOutput(std::FILE* file);

  std::FILE* const file_;
  std::unique_ptr<LogFile> log_file_;
};

// One rank's run from its config to the end: build, train or only evaluate, export, sample. Rank 0
// prints for the user and writes the run folder's config and metrics; the others write a log there.
// `world` is null for one process. With device=cuda each rank computes on one of `devices`.
// `stopped_by` becomes the signal that ended training early, the same on every rank, or 0.
absl::Status RunRank(const TrainConfig& resolved_config, const Launch& launch, Communicator* world,
                     ComputeDevices& devices, int* stopped_by);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_LAUNCH_H_
