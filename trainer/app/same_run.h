#ifndef TESSERA_TRAINER_APP_SAME_RUN_H_
#define TESSERA_TRAINER_APP_SAME_RUN_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "trainer/config/config.h"
#include "trainer/data/data_fingerprint.h"
#include "trainer/kernels/numerics_fingerprint.h"
#include "trainer/state/checkpoints.h"

namespace tessera {

// What every rank must have alike, or they would train something that nobody asked for without a
// word. Collective; InvalidArgument on each rank that differs from rank 0 unless said otherwise.

// Names the settings that differ. Where data and run folder are, and the number of threads, is each
// machine's own business.
absl::Status CheckSameSettings(const TrainConfig& config, const RankGroup& group);

// `fingerprint` is that of the files that `setting` has led to. What one rank does not know of its
// files is not compared.
absl::Status CheckSameFiles(std::string_view setting, const DataFingerprint& fingerprint,
                            const RankGroup& group);

// Whether all ranks compute the same bits, by their fingerprints. In EXACT numerics rank 0 gets
// InvalidArgument naming the ranks that differ from it, and in what; else it tells `notes` so. The
// others get the verdict when they hear from rank 0, or that it has left.
absl::Status CheckSameNumerics(const NumericsFingerprint& fingerprint, bool exact,
                               const RankGroup& group,
                               const std::function<void(const std::string&)>& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SAME_RUN_H_
