#ifndef TESSERA_TRAINER_APP_SAME_RUN_H_
#define TESSERA_TRAINER_APP_SAME_RUN_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "trainer/config/config.h"
#include "trainer/state/checkpoints.h"

namespace tessera {

// What every rank must have alike, or they would train something that nobody asked for without a
// word. Collective; InvalidArgument on each rank that differs from rank 0.

// Names the settings that differ. Where data and run folder are, and the number of threads, is each
// machine's own business.
absl::Status CheckSameSettings(const TrainConfig& config, const RankGroup& group);

// `fingerprint` is that of the files that `setting` has led to.
absl::Status CheckSameFiles(std::string_view setting, uint64_t fingerprint, const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_SAME_RUN_H_
