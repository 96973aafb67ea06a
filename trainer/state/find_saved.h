#ifndef TESSERA_TRAINER_STATE_FIND_SAVED_H_
#define TESSERA_TRAINER_STATE_FIND_SAVED_H_

// The checkpoint that the setting `load` names.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/program.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "storage/storage.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"

namespace tessera {

// A chosen committed checkpoint, of which only the manifest has been read.
struct SavedRun {
  ckpt::Checkpoint checkpoint;
  std::optional<int64_t> older_step = {};  // of the checkpoint before it in the same folder
  // Whether the checkpoint is the run's own, from the folder `save`.
  bool is_own = false;
  // Whether the checkpoint is a replica of the run's own state in the memory of its machines.
  bool in_memory = false;
  // The name of another framework's checkpoint, which the storage presents, and its format; empty:
  // a checkpoint of this library. Facts that its files do not record are absent from the manifest.
  std::string foreign_name = {};
  std::string foreign_format = {};

  const ckpt::Manifest& manifest() const { return checkpoint.manifest(); }
  std::string Describe() const {
    return foreign_name.empty() ? checkpoint.storage().Describe(checkpoint.directory())
                                : foreign_name;
  }
};

// Returns whether `load` is the folder to which the run saves.
bool LoadsItsOwn(const CheckpointConfig& config);

// Finds the checkpoint that `load` and `ckpt_step` name: `load` itself if it is a checkpoint, under
// whatever name, or one of another framework; otherwise the checkpoint of ckpt_step in the folder,
// or the newest without ckpt_step. Directories that cannot be read are skipped; their error is
// returned if nothing is left or ckpt_step names one. NotFound, with what is there instead, if
// there is no such checkpoint; DataLoss for a damaged manifest. Collective: rank 0 looks and reads,
// and sends the result to the others; its error reaches them when it leaves.
absl::StatusOr<SavedRun> FindToLoad(const TrainConfig& config, const RankGroup& group,
                                    const NoteSink& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_FIND_SAVED_H_
