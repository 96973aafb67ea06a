#include "trainer/state/saved_run.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "storage/open_storage.h"
#include "trainer/config/load_content.h"
#include "trainer/state/describe_saved.h"
#include "trainer/state/save_storage.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Returns the same text for all names of a folder, whether it exists already or not.
std::string UniqueName(std::string name) {
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  const std::optional<std::string> path = LocalPathOfName(name);
  if (!path.has_value()) return name;
  std::error_code error;
  const fs::path absolute = fs::absolute(*path, error);
  const fs::path unique = fs::weakly_canonical(absolute, error);
  return error ? name : unique.string();
}

bool ResumesItsOwn(const CheckpointConfig& config) {
  if (config.save().empty() || !config.auto_resume()) return false;
  // That is a request for weights, and for step 0.
  return LoadContentOf(config).scheduler || !LoadsItsOwn(config);
}

bool ChoosesOwnStep(const CheckpointConfig& config) {
  return ResumesItsOwn(config) && LoadsItsOwn(config) && config.has_ckpt_step();
}

// Returns the folders in `save` of weights that were exported at later steps.
std::vector<std::string> LaterExports(const CheckpointConfig& config) {
  std::vector<std::string> later;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(LocalPathOfName(config.save()).value_or(""), error)) {
    const std::string name = entry.path().filename();
    int64_t step = 0;
    if (!name.starts_with("hf-") || !absl::SimpleAtoi(name.substr(3), &step)) continue;
    if (step > config.ckpt_step()) later.push_back(name);
  }
  std::ranges::sort(later);
  return later;
}

void NoteAbandoned(const CheckpointConfig& config, const std::vector<std::string>& moved,
                   const NoteSink& notes) {
  if (moved.empty()) return;
  const std::vector<std::string> exports = LaterExports(config);
  notes(absl::StrCat(
      "ckpt_step=", config.ckpt_step(), ": later checkpoints of ", config.save(),
      " are quarantined as ", JoinFirst(moved, ", "),
      exports.empty() ? "" : "; exported weights of later steps stay: ", JoinFirst(exports, ", ")));
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

// The arguments of LoadSavedRun() but the replica, and its result.
struct Loading {
  const TrainConfig& config;
  const RankGroup& group;
  ckpt::CheckpointManager& manager;
  const NoteSink& notes;
  const LoadRun& load;
  std::vector<SkippedRun>& skipped;

  const CheckpointConfig& checkpoint() const { return config.checkpoint(); }
  bool is_reporter() const { return group.ranks.rank() == 0; }
};

// Says that a run does not continue from what an earlier run has saved in its folder, since it was
// not told to.
void NoteUnused(const Loading& run) {
  const std::string& folder = run.config.output().run_dir();
  if (!run.checkpoint().save().empty() || folder.empty() || !run.is_reporter()) return;
  const auto storage = OpenStorage(absl::StrCat(folder, "/checkpoints"));
  if (!storage.ok()) return;
  const auto saved = ckpt::ListForResume(**storage);
  if (!saved.ok() || saved->empty()) return;
  run.notes(absl::StrCat((*storage)->Describe(saved->front().directory),
                         " is not continued from: that takes --save-interval, or --save"));
}

// Loads a replica. Returns false, with a note, if it is damaged. `stored_step` belongs to the
// checkpoint of the store that it replaces; nullopt without one.
absl::StatusOr<bool> LoadReplica(const Loading& run, const SavedRun& replica,
                                 std::optional<int64_t> stored_step) {
  const int64_t step = replica.checkpoint.step();
  const absl::Status loaded = run.load(replica);
  if (!loaded.ok() && !ckpt::FindDamagedParts(loaded).has_value()) return loaded;
  if (!run.is_reporter()) return loaded.ok();
  if (loaded.ok()) {
    run.notes(absl::StrCat(
        "resumes from ", replica.Describe(), "; the store has ",
        stored_step.has_value() ? absl::StrCat("step ", *stored_step) : "no checkpoint", ": ",
        Counted(step - stored_step.value_or(0), "step"), " kept"));
  } else {
    run.notes(absl::StrCat("WARNING: ", replica.Describe(), " is not used: ", loaded.message()));
  }
  return loaded.ok();
}

// Loads the latest valid checkpoint in `save`, or that of ckpt_step; instead of it the replica, if
// that is not older. Returns false, with nothing loaded, if `save` has none. A damaged replica is
// reset.
absl::StatusOr<bool> LoadFromStore(const Loading& run, std::optional<SavedRun>& replica) {
  const CheckpointConfig& config = run.checkpoint();
  const ckpt::LoadOnThisRank load = [&](const ckpt::Checkpoint& checkpoint) -> absl::Status {
    if (replica.has_value() && replica->checkpoint.step() >= checkpoint.step()) {
      TESSERA_ASSIGN_OR_RETURN(const bool loaded, LoadReplica(run, *replica, checkpoint.step()));
      if (loaded) return absl::OkStatus();
      replica.reset();
    }
    if (!LoadsItsOwn(config) && !config.load().empty() && run.is_reporter()) {
      run.notes(absl::StrCat(
          "resuming from ", config.save(), ", where this run has saved, and ",
          "not from load=", config.load(),
          config.has_ckpt_step() ? absl::StrCat(" with ckpt_step=", config.ckpt_step()) : ""));
    }
    return run.load(SavedRun{.checkpoint = checkpoint, .is_own = true});
  };
  ckpt::ResumeOptions options = {.ignore_no_valid = config.resume_ignore_no_valid_checkpoint() ||
                                                    replica.has_value()};
  if (ChoosesOwnStep(config)) options.step = config.ckpt_step();
  const absl::StatusOr<ckpt::ResumeResult> resumed = run.manager.TryResume(load, options);
  TESSERA_RETURN_IF_ERROR(InSettings(resumed.status(), config));
  for (const ckpt::SkippedCheckpoint& skipped : resumed->skipped) {
    run.skipped.push_back({skipped.word, ckpt::Describe(run.manager.storage(), skipped)});
    run.notes(absl::StrCat("WARNING: ", run.skipped.back().sentence));
  }
  NoteAbandoned(config, resumed->abandoned, run.notes);
  return resumed->checkpoint.has_value();
}

// Loads the run's own state, from the store or the replica. Returns false if neither has one, with
// nothing loaded.
absl::StatusOr<bool> LoadOwn(const Loading& run, std::optional<SavedRun> replica) {
  const bool had_replica = replica.has_value();
  TESSERA_ASSIGN_OR_RETURN(const bool stored, LoadFromStore(run, replica));
  if (stored || !had_replica) return stored;
  if (replica.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const bool loaded, LoadReplica(run, *replica, std::nullopt));
    if (loaded) return true;
    replica.reset();
  }
  // Only the replica permitted a folder without a valid checkpoint: now the settings decide.
  return LoadFromStore(run, replica);
}

absl::Status LoadAny(const Loading& run, std::optional<SavedRun> replica) {
  const CheckpointConfig& checkpoint = run.checkpoint();
  if (ResumesItsOwn(checkpoint)) {
    TESSERA_ASSIGN_OR_RETURN(const bool loaded, LoadOwn(run, std::move(replica)));
    if (loaded) return absl::OkStatus();
    if (LoadsItsOwn(checkpoint)) {
      if (checkpoint.exit_on_missing_checkpoint() || checkpoint.has_ckpt_step()) {
        return absl::NotFoundError(absl::StrCat("save: no checkpoint in ", checkpoint.save()));
      }
      run.notes(absl::StrCat("no checkpoint in ", checkpoint.save(), ": starting afresh"));
      return run.load(std::nullopt);
    }
  }
  if (checkpoint.load().empty()) {
    NoteUnused(run);
    return run.load(std::nullopt);
  }
  TESSERA_ASSIGN_OR_RETURN(SavedRun named, FindNamed(run.config, run.group, run.notes));
  for (SkippedRun& skipped : named.skipped) run.skipped.push_back(std::move(skipped));
  TESSERA_RETURN_IF_ERROR(run.load(std::move(named)));
  if (!Saves(run.config) || !LoadsItsOwn(checkpoint) || !checkpoint.has_ckpt_step()) {
    return absl::OkStatus();
  }
  // Another future is abandoned.
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> moved,
                           run.manager.AbandonLater(checkpoint.ckpt_step()));
  NoteAbandoned(checkpoint, moved, run.notes);
  return absl::OkStatus();
}

}  // namespace

bool LoadsItsOwn(const CheckpointConfig& config) {
  if (config.save().empty()) return false;
  if (config.load().empty()) return config.auto_resume();
  return UniqueName(config.load()) == UniqueName(config.save());
}

bool ResumesLatest(const CheckpointConfig& config) {
  return ResumesItsOwn(config) && !ChoosesOwnStep(config);
}

absl::StatusOr<std::vector<SkippedRun>> LoadSavedRun(const TrainConfig& config,
                                                     const RankGroup& group,
                                                     ckpt::CheckpointManager& manager,
                                                     const NoteSink& notes, const LoadRun& load,
                                                     std::optional<SavedRun> replica) {
  std::vector<SkippedRun> skipped;
  TESSERA_RETURN_IF_ERROR(
      LoadAny({config, group, manager, notes, load, skipped}, std::move(replica)));
  return skipped;
}

absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group,
                                                     const NoteSink& notes) {
  // A run that does not save leaves everything as it is.
  TrainConfig looks_only = config;
  looks_only.mutable_checkpoint()->set_enable_save_ckpt(false);
  const auto manager = OpenToLook(config.checkpoint(), group);
  TESSERA_RETURN_IF_ERROR(OfSave(config.checkpoint(), manager.status()));
  std::optional<SavedRun> found;
  TESSERA_RETURN_IF_ERROR(
      LoadSavedRun(looks_only, group, **manager, notes, [&](std::optional<SavedRun> saved) {
        found = std::move(saved);
        return absl::OkStatus();
      }).status());
  return found;
}

}  // namespace tessera
