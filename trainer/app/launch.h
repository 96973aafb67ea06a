#ifndef TESSERA_TRAINER_APP_LAUNCH_H_
#define TESSERA_TRAINER_APP_LAUNCH_H_

// The way in which this process was started, as known before any message passing.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "layout/topology.h"

namespace tessera {

struct Launch {
  // When the process began, of SteadyNow().
  absl::Duration began = SteadyNow();
  // Whether a launcher (mpirun, srun) has started this process as one of a world.
  bool in_world = false;
  // The rank in that world, as far as the environment provides it.
  int rank = 0;
  // The number of columns of the terminal to which rank 0's output goes, 0 if it is not a terminal,
  // as far as the launcher provides it. Negative: determined by this process's own stdout.
  int terminal_columns = -1;
};

// Detects the launch from the environment that Open MPI's mpirun, Slurm's srun and
// trainer/configs/launch.py set.
Launch DetectLaunch();

// Checks that as many processes have been started as the topology needs. InvalidArgument: one
// sentence with the number that mpirun needs.
absl::Status CheckWorldSize(const Topology& topology, int processes);

// The output of other ranks than rank 0, which alone prints for the user: RUN_DIR/rank-00003.log
// or, without a run_dir, nowhere. LOG(ERROR) messages reach the terminal from any rank.
class RankOutput {
 public:
  // Opens the output. Creates the folder, and appends to an existing file, which gets glog's
  // messages until the end of the process. InvalidArgument, naming run_dir, if it cannot be
  // written.
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

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_LAUNCH_H_
