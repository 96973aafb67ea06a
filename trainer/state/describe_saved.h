#ifndef TESSERA_TRAINER_STATE_DESCRIBE_SAVED_H_
#define TESSERA_TRAINER_STATE_DESCRIBE_SAVED_H_

// Sentences for the user about saved runs: missing, insufficient and obstructing checkpoints.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/saved_run.h"

namespace tessera {

// Returns NotFound: `load` names no checkpoint. The message describes what is there instead.
absl::Status NothingToLoad(const CheckpointConfig& config);

// Adds a workaround for a checkpoint that cannot be read: the one before it.
absl::Status WithOlderStep(const absl::Status& status, std::optional<int64_t> older_step);

// Returns whether `name` names a regular file of a file system.
bool NamesAFile(const std::string& name);

// Adds, to the error of a resume from `save`, the settings that a user has given or can give.
absl::Status InSettings(const absl::Status& status, const CheckpointConfig& config);

// Returns FailedPrecondition if the checkpoint, which another program wrote, lacks the step or the
// position in the data from which the run would continue, and no setting states it. The message
// names the flags that state it or do without it. Also if consumed_samples is another position than
// the saved one.
absl::Status CheckTellsProgress(const SavedRun& saved, const TrainConfig& config);

// Returns one sentence about directories that FindNamed() and a resume skip in `folder`. These are
// saves of steps after `step` that were started but not committed, as a sudden death leaves them,
// and directories of any step that cannot be read. Empty if nothing is skipped. For rank 0.
absl::StatusOr<std::string> DescribeSkipped(const std::string& folder, int64_t step,
                                            const CheckpointConfig& config);

// Checks that checkpoints of a run that continues from `step` would not mix with others in its
// folder. FailedPrecondition if checkpoints of later steps exist, or may exist in a directory that
// cannot be read. OK if the run continues from one of its own (`from_own`), since
// LoadSavedRun() quarantines the later ones.
absl::Status CheckLaterSteps(const TrainConfig& config, int64_t step, bool from_own,
                             const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_DESCRIBE_SAVED_H_
