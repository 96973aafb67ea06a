#ifndef TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_
#define TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/plan/state_dict.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/save/options.h"
#include "checkpoint/save/save_agreement.h"
#include "checkpoint/save/staging_pool.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// A save of which nothing has been written yet.
struct PlannedSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t data_bytes = 0;  // of the data files, all ranks
};

// Called on rank 0 by the saving thread, when the save has been planned and before its space is
// checked. Returns the root to save under, and may delete what the new checkpoint replaces. An
// error fails the save.
using ChooseRoot = std::function<absl::StatusOr<std::string>(const PlannedSave&)>;

// State that the saves of one rank share.
struct SaveContext {
  Storage& storage;
  std::string root;
  ProcessGroup& group;
  SaveOptions options;
  int copy_ahead_threads;  // see DataWriterOptions
  PlanCache& plan_cache;
  StagingPool& staging;
  ChooseRoot choose_root = nullptr;  // null: every save goes to `root`
};

// What a save of this step begins with: the manifest without tensors and files.
Manifest MakeManifest(int64_t step, const Metadata& metadata);

// A save on the calling thread: Save() of checkpoint.h with a kind and, unless it is null, a choice
// of the root. options.metadata is ignored.
absl::StatusOr<SaveReport> SaveNow(Storage& storage, std::string_view root,
                                   const SaveRequest& request, const StateDict& state,
                                   const SaveOptions& options, ChooseRoot choose_root = nullptr);

// One save, from the plan to the commit, on the calling thread and those of the DataWriter, which
// is passed to `on_planned` (may be null) before the first element is read. Collective; every rank
// returns the same, except for the parts of a report that concern the rank itself.
absl::StatusOr<SaveReport> RunSave(
    const SaveContext& context, const Manifest& manifest, bool rolling, const StateDict& state,
    const std::function<void(std::shared_ptr<DataWriter>)>& on_planned);

// Takes part in the first agreement of a save that this rank refuses, for the given reason, so that
// no other rank makes it either. Returns the error that all ranks agreed on. Collective with
// RunSave() on other ranks.
absl::Status RefuseSave(const SaveContext& context, int64_t step, const absl::Status& reason);

// Plans a save of this state, so that the next RunSave() finds the plan in the cache, and reserves
// its staging memory. Collective.
absl::Status PlanAhead(const SaveContext& context, const StateDict& state);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_
