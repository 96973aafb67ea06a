#ifndef TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
#define TESSERA_TRAINER_APP_STEP_AGREEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manager/failed_saves.h"
#include "checkpoint/manager/save_schedule.h"
#include "compute/parallel/mesh.h"
#include "trainer/metrics/metrics.h"

namespace tessera {

// What rank 0 knows and every rank decides by.
struct LeaderState {
  absl::Duration elapsed;       // since the run began, in whole microseconds
  ckpt::StopRequest stop_file;  // as rank 0 has read it
  bool save_in_flight = false;
  ckpt::SaveTrouble save_trouble = ckpt::SaveTrouble::kNone;  // of saves in the background
  bool folder_is_taken = false;                               // another job saves to the same place
  bool records_fail = false;                                  // metrics.jsonl cannot be written
};

// Memory of this process, and of its GPU, in bytes.
struct UsedMemory {
  int64_t host = 0;  // the most until now
  int64_t gpu = 0;   // at present
};

// The result of an agreement after a step, the same on each rank.
struct StepAgreement {
  int stop_signal = 0;  // SIGINT or SIGTERM, when some rank got one; else 0
  LeaderState leader;
  double pipeline_wait_share = -1;  // mean over ranks; negative without a pipeline
  UsedMemory memory;                // of all ranks together
  std::vector<WireBytes> wire;  // sent by all ranks since the last agreement; empty for one rank
  TimeSplit time;               // mean over ranks
};

// `stop_signal`, `pipeline_wait_share`, `time` and `memory`: this rank's. `leader`: of rank 0, not
// read on others. Collective; one all-reduce of about 500 bytes.
absl::StatusOr<StepAgreement> AgreeOnStep(Mesh& mesh, int stop_signal, double pipeline_wait_share,
                                          const LeaderState& leader = {},
                                          const TimeSplit& time = {},
                                          const UsedMemory& memory = {});

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
