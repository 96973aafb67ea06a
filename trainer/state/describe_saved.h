#ifndef TESSERA_TRAINER_STATE_DESCRIBE_SAVED_H_
#define TESSERA_TRAINER_STATE_DESCRIBE_SAVED_H_

// Sentences for the user about saved runs: what is not there, what does not suffice, what is in the
// way.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"
#include "trainer/state/find_saved.h"

namespace tessera {

// How a note about a checkpoint begins that a resume has skipped, because it is damaged.
inline constexpr char kSkippedNote[] = "WARNING: skipped ";

// NotFound: `load` names no checkpoint. The message tells what is there instead.
absl::Status NothingToLoad(const CheckpointConfig& config);

// Adds a workaround for a checkpoint that cannot be read: the one before it.
absl::Status WithOlderStep(const absl::Status& status, std::optional<int64_t> older_step);

// Whether `name` names a regular file of a file system.
bool NamesAFile(const std::string& name);

// Adds, to the error of a resume from `save`, the settings that a user has given or can give.
absl::Status InSettings(const absl::Status& status, const CheckpointConfig& config);

// FailedPrecondition where the run would continue with something that the checkpoint does not have,
// because another program wrote it, and that no setting states: its step, or its position in the
// data. Names the flags that state it or do without it. Also where consumed_samples is another
// position than the saved one.
absl::Status CheckTellsProgress(const SavedRun& saved, const TrainConfig& config);

// One sentence about what FindToLoad() and a resume skip in `folder`: saves of steps after `step`
// that were started but not committed, as a sudden death leaves them, and directories of any step
// that cannot be read. Empty if nothing is skipped. For rank 0.
absl::StatusOr<std::string> DescribeSkipped(const std::string& folder, int64_t step,
                                            const CheckpointConfig& config);

// Whether checkpoints of a run that continues from `step` would mix with others in its folder:
// FailedPrecondition where checkpoints of later steps exist, or may exist in a directory that
// cannot be read, of another run or of a future that this run abandons. Not where the run continues
// from one of its own (`from_own`): ContinueFromSaved() takes the later ones out of the way.
absl::Status CheckLaterSteps(const TrainConfig& config, int64_t step, bool from_own,
                             const RankGroup& group);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_DESCRIBE_SAVED_H_
