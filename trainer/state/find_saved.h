#ifndef TESSERA_TRAINER_STATE_FIND_SAVED_H_
#define TESSERA_TRAINER_STATE_FIND_SAVED_H_

// Which checkpoint the setting `load` names.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "storage/storage.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/communicator_group.h"

namespace tessera {

// A committed checkpoint, chosen and its manifest read; no tensor has been touched.
struct SavedRun {
  ckpt::Checkpoint checkpoint;
  std::optional<int64_t> older_step = {};  // of the checkpoint before it in the same folder
  // The run's own, from the folder `save`, rather than what it starts from.
  bool is_own = false;
  // A replica of the run's own state in the memory of its machines, which is in no folder.
  bool in_memory = false;
  // Where another framework's checkpoint is, and its format, which the storage presents; empty:
  // none. What its files do not tell is absent from the manifest.
  std::string foreign_name = {};
  std::string foreign_format = {};

  const ckpt::Manifest& manifest() const { return checkpoint.manifest(); }
  std::string Describe() const {
    return foreign_name.empty() ? checkpoint.storage().Describe(checkpoint.directory())
                                : foreign_name;
  }
};

// Whether `load` means the folder that the run saves to.
bool LoadsItsOwn(const CheckpointConfig& config);

// Finds the checkpoint that `load` and `ckpt_step` name: `load` itself where it is a checkpoint,
// under whatever name, or one of another framework, else the newest in it without ckpt_step.
// Directories that cannot be read are skipped, unless nothing is left or ckpt_step names one: then
// their error is returned. NotFound where what is named is not there, with what is there instead;
// DataLoss for a damaged manifest. Collective: rank 0 looks and reads, and sends the others what it
// found; its error reaches them when it leaves.
absl::StatusOr<SavedRun> FindToLoad(const TrainConfig& config, const RankGroup& group,
                                    const NoteSink& notes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_FIND_SAVED_H_
