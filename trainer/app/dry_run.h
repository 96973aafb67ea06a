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

// Describes a run with these settings, a line each:
// - the model, its processes, and the steps and tokens that are left;
// - the memory of the process that needs most;
// - the size and number of its checkpoints, and the one from which it would continue.
// `config` is resolved; an empty train_data_path is reported as such.
//
// Trains, loads, locks, creates and renames nothing: only manifests and the headers of checkpoints
// and token files are read. All ranks are built as threads of this process, in memory that is
// reserved and hardly touched; with more than kMaxDryRunRanks ranks, or on a GPU, activations are
// not counted.
//
// Errors: those of the settings, of missing training data, and of a folder whose checkpoints are
// all invalid. Does not try whether `save` can be written to.
inline constexpr int kMaxDryRunRanks = 64;
absl::StatusOr<std::string> DescribeDryRun(const TrainConfig& config);

// Returns "124,439,808" for 124439808.
std::string Grouped(int64_t number);

// Describes the run before its first step, in a message and an event: its size, the memory of its
// processes, the least time that a step can take, and where it begins. Collective.
absl::Status AnnounceStart(const Session& session, const RateMeter::Options& rates,
                           ProgressLine& progress_line);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_DRY_RUN_H_
