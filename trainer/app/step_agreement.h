#ifndef TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
#define TESSERA_TRAINER_APP_STEP_AGREEMENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manager/save_schedule.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/parallel/mesh.h"
#include "trainer/config/config.h"
#include "trainer/data/token_checksums.h"
#include "trainer/metrics/metrics.h"
#include "trainer/state/checkpoints.h"

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

// Properties that every rank must have in common, or the run would silently train something else.
// Collective; InvalidArgument on each rank that differs from rank 0 unless stated otherwise.

// Names the settings that differ. The paths of data and run folder, and the number of threads, may
// differ between machines.
absl::Status CheckSameSettings(const TrainConfig& config, const RankGroup& group);

// `fingerprint` describes the files that `setting` names. Fingerprints that one rank does not know
// are not compared.
absl::Status CheckSameFiles(std::string_view setting, const DataFingerprint& fingerprint,
                            const RankGroup& group);

// Checks whether all ranks compute the same bits, by their fingerprints. In EXACT numerics rank 0
// returns InvalidArgument naming the ranks that differ from it, and how; otherwise it adds that to
// `notes`. The other ranks learn the result from rank 0's next message, or from its leaving.
absl::Status CheckSameNumerics(const NumericsFingerprint& fingerprint, const TrainConfig& config,
                               const RankGroup& group,
                               const std::function<void(const std::string&)>& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
