#ifndef TESSERA_TRAINER_APP_SAME_RUN_H_
#define TESSERA_TRAINER_APP_SAME_RUN_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "compute/kernels/numerics_fingerprint.h"
#include "trainer/config/config.h"
#include "trainer/data/content_hash.h"
#include "trainer/state/checkpoints.h"

namespace tessera {

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

#endif  // TESSERA_TRAINER_APP_SAME_RUN_H_
