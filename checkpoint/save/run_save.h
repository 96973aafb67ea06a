#ifndef TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_
#define TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/save/save_hooks.h"
#include "checkpoint/save/staging.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// State that the saves of one rank share.
struct SaveContext {
  Storage& storage;
  std::string root;
  ChooseRoot choose_root;  // null: every save goes to `root`
  ProcessGroup& group;
  SaveOptions options;
  int copy_ahead_threads;  // see DataWriterOptions
  PlanCache& plan_cache;
  StagingPool& staging;
  uint64_t copy_ahead_bytes = 0;  // see DataWriterOptions::ahead_bytes
};

// Saves on the calling thread. The checkpoint exists if and only if its manifest is committed; see
// CheckpointFolder::Save() in checkpoint.h.
absl::StatusOr<SaveReport> SaveNow(Storage& storage, const SaveRequest& request,
                                   const StateDict& state, const SaveOptions& options = {},
                                   const SaveHooks& hooks = {});

// Runs one save, from the plan to the commit, on the calling thread and those of the DataWriter,
// which is passed to `on_planned` (may be null) before the first element is read. Collective; every
// rank returns the same, except for the parts of a report that concern the rank itself.
absl::StatusOr<SaveReport> RunSave(
    const SaveContext& context, const SaveRequest& request, const StateDict& state,
    const std::function<void(std::shared_ptr<DataWriter>)>& on_planned);

// Takes part in the first agreement of a save that this rank refuses, for the given reason, so that
// no rank makes it. Returns the error on which all ranks agreed. Collective with RunSave() on other
// ranks.
absl::Status RefuseSave(const SaveContext& context, int64_t step, const absl::Status& reason);

// Plans a save of this state, so that the next RunSave() finds the plan in the cache, and reserves
// its staging memory. Collective.
absl::Status PlanAhead(const SaveContext& context, const StateDict& state);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_
