#ifndef TESSERA_CHECKPOINT_SAVE_SAVE_HOOKS_H_
#define TESSERA_CHECKPOINT_SAVE_SAVE_HOOKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/save_options.h"

namespace tessera::ckpt {

// Keeps this rank's part of the last plan: a save of a state of the same structure (names, roles,
// dtypes, shapes, boxes) through the same cache is not planned anew. Use one cache for each
// sequence of saves of one group; saves through one cache must not overlap.
class PlanCache {
 private:
  friend class SaveAgreement;
  struct Entry;
  std::shared_ptr<const Entry> entry_;  // null: no plan yet
};

// A planned save, of which nothing has been written yet.
struct PlannedSave {
  int64_t step = 0;
  bool rolling = false;
  uint64_t data_bytes = 0;  // of the data files, all ranks
};

// Returns the folder of the storage in which to save, and may delete the checkpoint that the new
// one replaces. Called on rank 0 by the saving thread, when the save has been planned and before
// its space is checked. An error fails the save.
using ChooseRoot = std::function<absl::StatusOr<std::string>(const PlannedSave&)>;

// Settings of the library for its own saves, beside the options of a program.
struct SaveHooks {
  std::string root;        // the folder of the storage in which to save; empty: the storage's root
  ChooseRoot choose_root;  // null: `root`
  // The plan of earlier saves of the same group, on every rank or on none; null: the save is
  // planned anew. An AsyncSaver has its own.
  PlanCache* plan_cache = nullptr;
  // Called by an AsyncSaver after each committed save, before its outcome is available and the next
  // save begins. Runs on the saver's thread, so it may take its time, for example to remove older
  // checkpoints.
  std::function<void(SaveReport&)> on_committed;
};

// Makes AsyncSavers that call hooks.
class HookedSavers {
 public:
  static std::unique_ptr<AsyncSaver> Make(Storage& storage, const AsyncSaveOptions& options,
                                          const SaveHooks& hooks);
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_SAVE_HOOKS_H_
