#include "trainer/state/continue_run.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/damage.h"
#include "trainer/config/load_content.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/load_tensors.h"
#include "trainer/state/save_storage.h"

namespace tessera {
namespace {

bool ResumesItsOwn(const CheckpointConfig& config) {
  if (config.save().empty() || !config.auto_resume()) return false;
  // That is a request for weights, and for step 0.
  return LoadContentOf(config).scheduler || !LoadsItsOwn(config);
}

bool ChoosesOwnStep(const CheckpointConfig& config) {
  return ResumesItsOwn(config) && LoadsItsOwn(config) && config.has_ckpt_step();
}

void NoteAbandoned(const CheckpointConfig& config, const std::vector<std::string>& moved,
                   const NoteSink& notes) {
  if (moved.empty()) return;
  notes(absl::StrCat("ckpt_step=", config.ckpt_step(), ": later checkpoints of ", config.save(),
                     " are quarantined as ", JoinFirst(moved, ", ")));
}

// Opens a manager of `save` that changes nothing there.
absl::StatusOr<std::unique_ptr<ckpt::CheckpointManager>> OpenToLook(const CheckpointConfig& config,
                                                                    const RankGroup& group) {
  ckpt::CheckpointManagerOptions options;
  options.save.group = &group.ranks;
  options.save.timeout = group.timeout;
  options.schedule.saves = false;
  return ckpt::CheckpointManager::Open(config.save(), std::move(options), StoresOf(config));
}

// Uses a replica. Returns false, with a note, if it is damaged. `stored_step` belongs to the
// checkpoint of the store that it replaces; nullopt without one.
absl::StatusOr<bool> UseReplica(const SavedRun& replica, std::optional<int64_t> stored_step,
                                const RankGroup& group, const NoteSink& notes,
                                const UseSavedRun& use) {
  const int64_t step = replica.checkpoint.step();
  const absl::Status used = use(replica);
  if (!used.ok() && !ckpt::FindDamagedParts(used).has_value()) return used;
  if (group.ranks.rank() != 0) return used.ok();
  if (used.ok()) {
    notes(absl::StrCat("resumes from ", replica.Describe(), "; the store has ",
                       stored_step.has_value()
                           ? absl::StrCat("step ", *stored_step, ": ", step - *stored_step)
                           : absl::StrCat("no checkpoint: ", step),
                       " steps kept"));
  } else {
    notes(absl::StrCat("WARNING: ", replica.Describe(), " is not used: ", used.message()));
  }
  return used.ok();
}

// Uses the latest checkpoint in `save`, or that of ckpt_step, or the replica. Returns false, with
// nothing called, if `save` has none and no replica is given.
absl::StatusOr<bool> ResumeOwn(const TrainConfig& settings, const RankGroup& group,
                               ckpt::CheckpointManager& manager, const NoteSink& notes,
                               const UseSavedRun& use, std::optional<SavedRun> replica) {
  const CheckpointConfig& config = settings.checkpoint();
  const bool had_replica = replica.has_value();
  const bool loads_other = !LoadsItsOwn(config) && !config.load().empty();
  const ckpt::LoadOnThisRank load = [&](const ckpt::Checkpoint& checkpoint) -> absl::Status {
    if (replica.has_value() && replica->checkpoint.step() >= checkpoint.step()) {
      TESSERA_ASSIGN_OR_RETURN(const bool used,
                               UseReplica(*replica, checkpoint.step(), group, notes, use));
      if (used) return absl::OkStatus();
      replica.reset();
    }
    if (loads_other && group.ranks.rank() == 0) {
      notes(absl::StrCat("resuming from ", config.save(), ", where this run has saved, and not ",
                         "from load=", config.load()));
    }
    return use(SavedRun{.checkpoint = checkpoint, .is_own = true});
  };
  ckpt::ResumeOptions options = {.ignore_no_valid = config.resume_ignore_no_valid_checkpoint() ||
                                                    replica.has_value()};
  if (ChoosesOwnStep(config)) options.step = config.ckpt_step();
  const absl::StatusOr<ckpt::ResumeResult> resumed = manager.TryResume(load, options);
  TESSERA_RETURN_IF_ERROR(InSettings(resumed.status(), config));
  for (const ckpt::SkippedCheckpoint& skipped : resumed->skipped) {
    notes(absl::StrCat("WARNING: ", ckpt::Describe(manager.storage(), skipped)));
  }
  NoteAbandoned(config, resumed->abandoned, notes);
  if (resumed->checkpoint.has_value() || !had_replica) return resumed->checkpoint.has_value();
  if (replica.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const bool used,
                             UseReplica(*replica, std::nullopt, group, notes, use));
    if (used) return true;
  }
  // Only the replica permitted a folder without a valid checkpoint: now the settings decide.
  return ResumeOwn(settings, group, manager, notes, use, std::nullopt);
}

}  // namespace

bool ResumesLatest(const CheckpointConfig& config) {
  return ResumesItsOwn(config) && !ChoosesOwnStep(config);
}

absl::Status ContinueFromSaved(const TrainConfig& config, const RankGroup& group,
                               ckpt::CheckpointManager& manager, const NoteSink& notes,
                               const UseSavedRun& use, std::optional<SavedRun> replica) {
  const CheckpointConfig& checkpoint = config.checkpoint();
  if (ResumesItsOwn(checkpoint)) {
    TESSERA_ASSIGN_OR_RETURN(const bool resumed,
                             ResumeOwn(config, group, manager, notes, use, std::move(replica)));
    if (resumed) return absl::OkStatus();
    if (LoadsItsOwn(checkpoint)) {
      if (checkpoint.exit_on_missing_checkpoint() || checkpoint.has_ckpt_step()) {
        return absl::NotFoundError(absl::StrCat("save: no checkpoint in ", checkpoint.save()));
      }
      notes(absl::StrCat("no checkpoint in ", checkpoint.save(), ": starting afresh"));
      return use(std::nullopt);
    }
  }
  if (checkpoint.load().empty()) return use(std::nullopt);
  TESSERA_ASSIGN_OR_RETURN(SavedRun run, FindToLoad(config, group, notes));
  TESSERA_RETURN_IF_ERROR(use(std::move(run)));
  if (!Saves(config) || !LoadsItsOwn(checkpoint) || !checkpoint.has_ckpt_step()) {
    return absl::OkStatus();
  }
  // Another future is abandoned.
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> moved,
                           manager.AbandonLater(checkpoint.ckpt_step()));
  NoteAbandoned(checkpoint, moved, notes);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group,
                                                     const NoteSink& notes) {
  // A run that does not save leaves everything as it is.
  TrainConfig looks_only = config;
  looks_only.mutable_checkpoint()->set_enable_save_ckpt(false);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::CheckpointManager> manager,
                           OpenToLook(config.checkpoint(), group));
  std::optional<SavedRun> found;
  TESSERA_RETURN_IF_ERROR(
      ContinueFromSaved(looks_only, group, *manager, notes, [&](std::optional<SavedRun> saved) {
        found = std::move(saved);
        return absl::OkStatus();
      }));
  return found;
}

TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved) {
  if (!saved.has_value()) return config;
  CheckpointConfig& checkpoint = *config.mutable_checkpoint();
  if (IsOfStatelessOptimizer(saved->manifest())) checkpoint.set_no_load_optim(true);
  if (!saved->is_own) return config;
  // The same command resumes a run that saves no optimizer state.
  const bool begins_afresh = (checkpoint.no_save_optim() || checkpoint.no_load_optim()) &&
                             !HasRole(saved->manifest(), ckpt::TensorRole::kOptimizerState);
  if (begins_afresh) checkpoint.set_no_load_optim(true);
  if (LoadsItsOwn(checkpoint)) return config;
  checkpoint.clear_ckpt_step();
  checkpoint.clear_consumed_samples();
  checkpoint.set_load_content("all");
  checkpoint.set_finetune(false);
  checkpoint.set_no_load_optim(begins_afresh);
  checkpoint.set_no_load_rng(false);
  checkpoint.set_load_tensors("");
  checkpoint.set_allow_missing(false);
  checkpoint.set_allow_unexpected(false);
  return config;
}

}  // namespace tessera
