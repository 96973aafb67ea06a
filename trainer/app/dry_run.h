#ifndef TESSERA_TRAINER_APP_DRY_RUN_H_
#define TESSERA_TRAINER_APP_DRY_RUN_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/app/session.h"
#include "trainer/config/config.pb.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"

namespace tessera {

// What a run with these settings would be, a line each: the model, its processes, the steps and
// tokens that are left, the memory of the process that needs most, the size and number of its
// checkpoints, and the one that it would continue from. `config` is resolved; a train_data_path
// that is empty is reported as such.
//
// Nothing is trained, loaded, locked, created or renamed: only manifests and the headers of
// checkpoints and token files are read. All ranks are built as threads of this process, in memory
// that is reserved and hardly touched; with more than kMaxDryRunRanks of them, or on a GPU,
// activations are not counted.
//
// Errors: those of the settings, of training data that is not there, and of checkpoints without a
// valid one. Whether `save` can be written to is not tried.
inline constexpr int kMaxDryRunRanks = 64;
absl::StatusOr<std::string> DescribeDryRun(const TrainConfig& config);

// 124439808 is "124,439,808".
std::string Grouped(int64_t number);

// Says what the run is, before its first step, and records it as an event: its size, the memory of
// its processes, the least that a step can take, and where it begins. Collective.
absl::Status AnnounceStart(const Session& session, const RateMeter::Options& rates,
                           ProgressLine& progress_line);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_DRY_RUN_H_
