#ifndef TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
#define TESSERA_TRAINER_APP_STEP_AGREEMENT_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/program.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "compute/parallel/mesh.h"
#include "trainer/config/config.h"
#include "trainer/data/token_checksums.h"
#include "trainer/metrics/metrics.h"
#include "trainer/state/communicator_group.h"

namespace tessera {

// Memory of this process, and of its GPU, in bytes.
struct UsedMemory {
  int64_t host = 0;  // the most until now
  int64_t gpu = 0;   // at present
};

// The result of an agreement after a step, the same on each rank.
struct StepAgreement {
  double pipeline_wait_share = -1;  // mean over ranks; negative without a pipeline
  UsedMemory memory;                // of all ranks together
  std::vector<WireBytes> wire;  // sent by all ranks since the last agreement; empty for one rank
  TimeSplit time;               // mean over ranks
};

// Adds up `counts`, of JobSaves::Decide(), over all ranks, and combines their
// measurements. Collective; one all-reduce of about 500 bytes, the only exchange of a step beside
// its computation.
absl::StatusOr<StepAgreement> AgreeOnStep(Mesh& mesh, std::span<int64_t> counts,
                                          double pipeline_wait_share, const TimeSplit& time = {},
                                          const UsedMemory& memory = {});

// The checks below compare properties in which all ranks must agree, or the run would silently
// train something else. Collective; InvalidArgument on each rank that differs from rank 0 unless
// stated otherwise.

// Compares the settings, and names those that differ. The paths of data and run folder, and the
// number of threads, may differ between machines.
absl::Status CheckSameSettings(const TrainConfig& config, const RankGroup& group);

// Compares the files that `setting` names by their `fingerprint`. Fingerprints that one rank does
// not know are not compared.
absl::Status CheckSameFiles(std::string_view setting, const DataFingerprint& fingerprint,
                            const RankGroup& group);

// Checks whether all ranks compute the same bits, by their fingerprints. In EXACT numerics rank 0
// returns InvalidArgument naming the ranks that differ from it, and how; in FAST numerics it adds a
// sentence to `notes` instead. The other ranks learn the result from rank 0's next message, or from
// its leaving.
absl::Status CheckSameNumerics(const NumericsFingerprint& fingerprint, const TrainConfig& config,
                               const RankGroup& group, const NoteSink& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
