#ifndef TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_
#define TESSERA_CHECKPOINT_SAVE_RUN_SAVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/include/state_dict.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/save/save_agreement.h"
#include "checkpoint/save/staging.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// A save that is planned. Nothing of it is written yet.
struct PlannedSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t data_bytes = 0;             // of the data files, all ranks
  const Manifest* manifest = nullptr;  // with what the request says; valid during the call
};

// Returns the folder of the storage in which to save, and may delete the checkpoint that the new
// one replaces. Called on rank 0 by the saving thread, when the save has been planned and before
// its space is checked. An error fails the save.
using ChooseRoot = std::function<absl::StatusOr<std::string>(const PlannedSave&)>;

// What the library adds to its own saves, beside the options of a program.
struct SaveHooks {
  ChooseRoot choose_root;  // null: the storage's root
  // Called on rank 0 when nothing but the request that commits is missing, and again before the
  // request is repeated. An error ends the save. Null: not called.
  std::function<absl::Status()> may_commit = nullptr;
  // The plan of earlier saves of the same group, on every rank or on none; null: the save is
  // planned anew. An AsyncSaver has its own.
  PlanCache* plan_cache = nullptr;
  // Called by an AsyncSaver after each committed save, before its outcome is available and the next
  // save begins. Runs on the saver's thread, so it may take its time, for example to remove older
  // checkpoints.
  std::function<void(SaveReport&)> on_committed;
  // Called when a save has failed, and its space is freed. Returns the error that this rank's save
  // returns, with the same code. Null: not called.
  std::function<absl::Status(const absl::Status&)> on_failed = nullptr;
  bool rolling = false;  // see PlannedSave
};

// Makes an AsyncSaver that calls hooks.
std::unique_ptr<AsyncSaver> MakeAsyncSaver(Storage& storage, const AsyncSaveOptions& options,
                                           const SaveHooks& hooks);

// Calls saver.Start() for a save with this PlannedSave::rolling.
void StartSave(AsyncSaver& saver, const SaveRequest& request, const StateDict& state, bool rolling);

// State that the saves of one rank share.
struct SaveContext {
  Storage& storage;
  const SaveHooks& hooks;
  ProcessGroup& group;
  SaveOptions options;
  int copy_threads;  // see DataWriterOptions
  PlanCache& plan_cache;
  StagingPool& staging;
  uint64_t copy_ahead_bytes = 0;  // see AsyncSaveOptions
};

// Saves on the calling thread. The checkpoint exists if and only if its manifest is committed; see
// CheckpointFolder::Save() in checkpoint.h.
absl::StatusOr<SaveReport> SaveNow(Storage& storage, const SaveRequest& request,
                                   const StateDict& state, const SaveOptions& options = {},
                                   const SaveHooks& hooks = {});

// Takes part in a save of other ranks by SaveNow(), as RefuseSave() does.
absl::Status RefuseNow(Storage& storage, int64_t step, const absl::Status& reason,
                       const SaveOptions& options, const SaveHooks& hooks);

// Runs one save, from the plan to the commit, on the calling thread and the threads of a
// DataWriter. Passes the writer to `on_planned` (may be null) before the first element is read.
// Collective; every rank returns the same, except for the parts of a report that concern the rank
// itself.
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
