#include "trainer/state/checkpoints.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/damage.h"
#include "checkpoint/directory/read_lock.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "convert/contents.h"
#include "convert/core/foreign_storage.h"
#include "convert/core/known_step.h"
#include "convert/core/notes.h"
#include "convert/open_foreign.h"
#include "trainer/config/config.h"
#include "trainer/config/load_content.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/saved_run.pb.h"

namespace tessera {
namespace {

bool SameFolder(std::string_view a, std::string_view b) {
  while (a.size() > 1 && a.ends_with('/')) a.remove_suffix(1);
  while (b.size() > 1 && b.ends_with('/')) b.remove_suffix(1);
  return a == b;
}

// Whether `load` means the folder that the run saves to.
bool LoadsItsOwn(const CheckpointConfig& config) {
  if (config.save().empty()) return false;
  if (config.load().empty()) return config.auto_resume();
  return SameFolder(config.load(), config.save());
}

// The requested checkpoint in `saved`.
absl::StatusOr<size_t> Choose(Storage& storage, const CheckpointConfig& config,
                              const std::vector<ckpt::CheckpointInfo>& saved) {
  if (!config.has_ckpt_step()) return saved.size() - 1;
  const auto found = std::ranges::find(saved, config.ckpt_step(), &ckpt::CheckpointInfo::step);
  if (found != saved.end()) return found - saved.begin();
  return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(), ": ",
                                          ckpt::NoSuchCheckpoint(storage, saved).message()));
}

// A checkpoint in place of the folder that contains it would look like a folder without any.
absl::Status CheckSaveFolder(const std::string& folder, Storage& storage) {
  if (absl::IsNotFound(ckpt::ReadManifest(storage, "").status())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("save=", folder, " is a single checkpoint: expected the folder above it"));
}

// Adds to a manifest what its writer did not know and the settings state: the step, and the
// position in the data.
void StateWhatIsUnknown(const CheckpointConfig& config, ckpt::Manifest& manifest) {
  if (!ckpt::convert::TellsStep(manifest)) {
    if (!config.has_ckpt_step() && LoadContentOf(config).scheduler) return;
    manifest.mutable_trainer()->mutable_extra()->erase(ckpt::convert::kUnknownStepEntry);
    manifest.mutable_trainer()->set_best_loss(std::numeric_limits<double>::infinity());
    if (config.has_ckpt_step()) manifest.mutable_trainer()->set_step(config.ckpt_step());
  }
  if (config.has_consumed_samples() && !manifest.trainer().has_data()) {
    manifest.mutable_trainer()->mutable_data()->set_consumed_samples(config.consumed_samples());
  }
}

// `name` is itself a checkpoint.
absl::StatusOr<SavedRun> TakeSingleCheckpoint(const std::string& name,
                                              std::unique_ptr<Storage> storage,
                                              absl::StatusOr<ckpt::Manifest> manifest,
                                              const CheckpointConfig& config,
                                              std::shared_ptr<const ckpt::ReadLock> reading = {}) {
  TESSERA_RETURN_IF_ERROR(manifest.status());
  StateWhatIsUnknown(config, *manifest);
  if (config.has_ckpt_step() && config.ckpt_step() != manifest->trainer().step()) {
    return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(), ": ", name,
                                            " is a single checkpoint, of step ",
                                            manifest->trainer().step()));
  }
  return SavedRun{.checkpoint = ckpt::Checkpoint(std::move(storage), "", *std::move(manifest),
                                                 std::move(reading))};
}

// Permanent and rolling checkpoints, ascending by step; of one step the permanent one first.
absl::StatusOr<std::vector<ckpt::CheckpointInfo>> ListWithRolling(
    Storage& storage, std::vector<ckpt::CheckpointInfo>* unreadable) {
  TESSERA_RETURN_IF_ERROR(ckpt::CheckpointFolder(storage).List(unreadable).status());
  TESSERA_ASSIGN_OR_RETURN(std::vector<ckpt::CheckpointInfo> all, ckpt::ListForResume(storage));
  std::ranges::sort(all, {}, [](const ckpt::CheckpointInfo& checkpoint) {
    return std::pair(checkpoint.step, checkpoint.rolling);
  });
  return all;
}

// In this format, or in any where it is empty.
ckpt::convert::OpenForeignOptions ForeignOptions(const CheckpointConfig& config,
                                                 const std::string& format) {
  return {.format = format,
          .stores = StoresOf(config),
          .parameter_names_file = config.parameter_to_structured_name(),
          .needs_trainer_files = LoadContentOf(config).optimizer};
}

absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> OpenForeign(
    const TrainConfig& config, const std::string& name, const std::string& format) {
  const ckpt::ModelProto model = ToProto(config.model());
  ckpt::convert::OpenForeignOptions options = ForeignOptions(config.checkpoint(), format);
  options.model = &model;
  return ckpt::convert::OpenForeign(name, options);
}

// Tensors under other names than a model's are of no use, unless some of them suffice.
absl::Status CheckIsModel(const std::string& name, const ckpt::convert::ForeignStorage& storage,
                          const ckpt::Manifest& manifest, const CheckpointConfig& config) {
  if (manifest.has_model() || storage.notes().empty() || config.allow_missing() ||
      config.allow_unexpected() || !config.load_tensors().empty()) {
    return absl::OkStatus();
  }
  return ckpt::convert::WithNotes(
      absl::FailedPreconditionError(
          absl::StrCat(name, " (", storage.format(), ") does not have this model's tensors")),
      storage.notes());
}

// Counts the position in the data in samples of this length, where the other framework's have
// another one and the tokens make whole samples. Returns a sentence about it, or "".
std::string InSamplesOf(int64_t seq_length, ckpt::Manifest& manifest) {
  if (!manifest.trainer().has_data() || seq_length <= 0) return "";
  ckpt::DataState& data = *manifest.mutable_trainer()->mutable_data();
  const int64_t samples = data.consumed_samples(), length = data.sequence_length();
  int64_t tokens = 0;
  if (length <= 0 || length == seq_length || __builtin_mul_overflow(samples, length, &tokens) ||
      tokens % seq_length != 0) {
    return "";
  }
  data.set_consumed_samples(tokens / seq_length);
  data.set_sequence_length(seq_length);
  return absl::StrCat(samples, " consumed samples of ", length, " tokens are ",
                      data.consumed_samples(), " of ", seq_length);
}

// Finds another framework's checkpoint, or a run of such, in `load`. NotFound if it is something
// else.
absl::StatusOr<SavedRun> FindForeign(const TrainConfig& settings, const NoteSink& notes) {
  const CheckpointConfig& config = settings.checkpoint();
  const absl::StatusOr<ckpt::convert::FoundForeign> known = ckpt::convert::FindForeign(
      config.load(), config.has_ckpt_step() ? std::optional(config.ckpt_step()) : std::nullopt,
      ForeignOptions(config, config.load_format()));
  if (absl::IsNotFound(known.status())) return NothingToLoad(config);
  TESSERA_ASSIGN_OR_RETURN(const ckpt::convert::FoundForeign found, known);
  absl::StatusOr<std::unique_ptr<ckpt::convert::ForeignStorage>> storage =
      OpenForeign(settings, found.name, config.load_format());
  if (absl::IsNotFound(storage.status())) return NothingToLoad(config);
  TESSERA_RETURN_IF_ERROR(storage.status());
  std::vector<std::string> all_notes = found.notes;
  all_notes.insert(all_notes.end(), (*storage)->notes().begin(), (*storage)->notes().end());
  for (const std::string& note : all_notes) {
    notes(absl::StrCat("load=", config.load(), ": ", note));
  }
  std::string format = (*storage)->format();
  absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(**storage, "");
  if (manifest.ok()) {
    const std::string sentence = InSamplesOf(settings.training().seq_length(), *manifest);
    if (!sentence.empty()) notes(absl::StrCat("load=", config.load(), ": ", sentence));
  }
  if (manifest.ok())
    TESSERA_RETURN_IF_ERROR(CheckIsModel(found.name, **storage, *manifest, config));
  TESSERA_ASSIGN_OR_RETURN(SavedRun run, TakeSingleCheckpoint(found.name, *std::move(storage),
                                                              std::move(manifest), config));
  run.foreign_name = found.name;
  run.foreign_format = std::move(format);
  return run;
}

bool IsFile(const std::string& name) {
  std::error_code error;
  const std::optional<std::string> local = LocalPathOfName(name);
  return local.has_value() && std::filesystem::is_regular_file(*local, error);
}

// In `load`.
absl::StatusOr<SavedRun> FindToLoad(const TrainConfig& settings, const NoteSink& notes) {
  const CheckpointConfig& config = settings.checkpoint();
  const std::string& format = config.load_format();
  const bool is_ours = format == kTesseraFormat;
  const bool is_foreign = !format.empty() || !config.parameter_to_structured_name().empty();
  if (IsFile(config.load()) && !is_ours) return FindForeign(settings, notes);
  absl::StatusOr<std::unique_ptr<Storage>> storage =
      OpenStorage(config.load(), {.s3_endpoint = config.s3_endpoint()});
  if (absl::IsNotFound(storage.status())) return NothingToLoad(config);
  TESSERA_RETURN_IF_ERROR(storage.status());
  if (is_foreign && !is_ours) return FindForeign(settings, notes);
  auto reading = std::make_shared<const ckpt::ReadLock>(**storage, "");
  absl::StatusOr<ckpt::Manifest> single = ckpt::ReadManifest(**storage, "");
  if (!absl::IsNotFound(single.status())) {
    return TakeSingleCheckpoint(config.load(), *std::move(storage), std::move(single), config,
                                std::move(reading));
  }
  std::vector<ckpt::CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> saved,
                           ListWithRolling(**storage, &unreadable));
  for (const ckpt::CheckpointInfo& checkpoint : unreadable) {
    // It was requested, or it may be the only one.
    const bool needed =
        config.has_ckpt_step() ? checkpoint.step == config.ckpt_step() : saved.empty();
    if (needed) return checkpoint.committed.status();
  }
  if (saved.empty() && !is_ours) return FindForeign(settings, notes);
  if (saved.empty()) return NothingToLoad(config);
  TESSERA_ASSIGN_OR_RETURN(const size_t chosen, Choose(**storage, config, saved));
  const std::string& directory = saved[chosen].directory;
  std::optional<int64_t> older_step;
  for (size_t i = 0; i < chosen && saved[i].step < saved[chosen].step; ++i) {
    older_step = saved[i].step;
  }
  reading = std::make_shared<const ckpt::ReadLock>(**storage, directory);
  absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(**storage, directory);
  if (!manifest.ok()) return WithOlderStep(manifest.status(), older_step);
  StateWhatIsUnknown(config, *manifest);
  return SavedRun{.checkpoint = ckpt::Checkpoint(*std::move(storage), directory,
                                                 *std::move(manifest), std::move(reading)),
                  .older_step = older_step};
}

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
                     " are set aside as ", JoinFirst(moved, ", ")));
}

// `save` on each rank; null where it is not there.
absl::StatusOr<std::shared_ptr<Storage>> OpenOwn(const CheckpointConfig& config,
                                                 const RankGroup& group) {
  absl::StatusOr<std::shared_ptr<Storage>> storage = OpenSaveStorage(config);
  if (absl::IsNotFound(storage.status())) storage = nullptr;
  TESSERA_RETURN_IF_ERROR(ckpt::AgreeOnStatus(group.ranks, storage.status(), group.deadline));
  return storage;
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
                               ckpt::FolderLock* lock, const NoteSink& notes,
                               const UseSavedRun& use, std::optional<SavedRun> replica) {
  const CheckpointConfig& config = settings.checkpoint();
  const bool had_replica = replica.has_value();
  const bool loads_other = !LoadsItsOwn(config) && !config.load().empty();
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenOwn(config, group));
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
  ckpt::ResumeOptions options = {
      .quarantine = Saves(settings),
      .step_name = "ckpt_step",
      .ignore_no_valid = config.resume_ignore_no_valid_checkpoint() || replica.has_value(),
      .ignore_no_valid_hint = absl::StrCat("--resume-ignore-no-valid-checkpoint begins ",
                                           loads_other ? "from load" : "at step 0"),
      .no_folder = absl::StrCat("save: no folder ", config.save()),
      .lock = lock,
      .deadline = group.deadline};
  if (ChoosesOwnStep(config)) options.step = config.ckpt_step();
  TESSERA_ASSIGN_OR_RETURN(const ckpt::ResumeResult resumed,
                           ckpt::ResumeFromLatest(storage, group.ranks, options, load));
  for (const ckpt::SkippedCheckpoint& skipped : resumed.skipped) {
    notes(absl::StrCat("WARNING: ", ckpt::Describe(*storage, skipped)));
  }
  NoteAbandoned(config, resumed.abandoned, notes);
  if (resumed.checkpoint.has_value() || !had_replica) return resumed.checkpoint.has_value();
  if (replica.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const bool used,
                             UseReplica(*replica, std::nullopt, group, notes, use));
    if (used) return true;
  }
  // Only the replica permitted a folder without a valid checkpoint: now the settings decide.
  return ResumeOwn(settings, group, lock, notes, use, std::nullopt);
}

// Rank 0's message to the others about the checkpoint that it has found.
std::string Encode(const SavedRun& run) {
  SavedRunMessage message;
  message.set_directory(run.checkpoint.directory());
  if (run.older_step.has_value()) message.set_older_step(*run.older_step);
  message.set_foreign_name(run.foreign_name);
  message.set_foreign_format(run.foreign_format);
  message.set_manifest(run.manifest().SerializeAsString());
  return message.SerializeAsString();
}

absl::StatusOr<SavedRun> Decode(const std::string& bytes, const TrainConfig& settings) {
  const CheckpointConfig& config = settings.checkpoint();
  SavedRunMessage message;
  ckpt::Manifest manifest;
  if (!message.ParseFromString(bytes) || !manifest.ParseFromString(message.manifest())) {
    return absl::InternalError("rank 0's message about the checkpoint does not parse");
  }
  std::shared_ptr<Storage> storage;
  if (!message.foreign_format().empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        storage, OpenForeign(settings, message.foreign_name(), message.foreign_format()));
  } else {
    TESSERA_ASSIGN_OR_RETURN(storage,
                             OpenStorage(config.load(), {.s3_endpoint = config.s3_endpoint()}));
  }
  SavedRun run = {
      .checkpoint = ckpt::Checkpoint(std::move(storage), message.directory(), std::move(manifest)),
      .foreign_name = message.foreign_name(),
      .foreign_format = message.foreign_format()};
  if (message.has_older_step()) run.older_step = message.older_step();
  return run;
}

// An existing folder may be read-only, which the first save would find out late.
absl::Status CheckWritable(const std::string& folder) {
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("save: nothing can be written to ", folder, ": ", std::strerror(errno)));
}

// The checks of rank 0 before any rank saves.
absl::StatusOr<std::unique_ptr<ckpt::FolderLock>> LockOnThisRank(const CheckpointConfig& config,
                                                                 const NoteSink& notes,
                                                                 absl::Duration wait) {
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Storage> storage,
      OpenStorage(config.save(), {.create_root = true, .s3_endpoint = config.s3_endpoint()}));
  TESSERA_RETURN_IF_ERROR(CheckSaveFolder(config.save(), *storage));
  const std::optional<std::string> folder = storage->LocalPath("");
  if (folder.has_value()) TESSERA_RETURN_IF_ERROR(CheckWritable(*folder));
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<ckpt::FolderLock> lock,
      ckpt::FolderLock::Acquire(std::move(storage), {.wait = wait, .on_wait = notes}));
  if (!lock->warning().empty()) notes(lock->warning());
  return lock;
}

absl::Status CheckLaterOnThisRank(const CheckpointConfig& config, int64_t step, bool from_own) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                           OpenStorage(config.save(), {.s3_endpoint = config.s3_endpoint()}));
  const bool leaves_step_out = LoadsItsOwn(config) && !LoadContentOf(config).scheduler;
  const absl::Status status = ckpt::CheckNoneIsLater(
      *storage, step, /*only_unreadable=*/from_own,
      leaves_step_out ? "resume with the step, which --finetune and --load-content leave out"
                      : "resume from there");
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::FailedPreconditionError(absl::StrCat("save: ", status.message()));
}

// Sets the checkpoints of later steps aside where `load` is `save`, and ckpt_step has chosen an
// earlier one.
absl::Status AbandonLaterSteps(const TrainConfig& settings, const RankGroup& group,
                               ckpt::FolderLock* lock, const NoteSink& notes) {
  const CheckpointConfig& config = settings.checkpoint();
  if (!Saves(settings) || !LoadsItsOwn(config) || !config.has_ckpt_step()) return absl::OkStatus();
  if (group.ranks.rank() == 0) {
    if (lock != nullptr) TESSERA_RETURN_IF_ERROR(lock->Confirm());
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                             OpenStorage(config.save(), {.s3_endpoint = config.s3_endpoint()}));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> moved,
                             ckpt::AbandonLater(*storage, config.ckpt_step()));
    NoteAbandoned(config, moved, notes);
  }
  return group.ranks.Broadcast("", group.deadline).status();
}

}  // namespace

absl::Status NothingToLoad(const CheckpointConfig& config) {
  const absl::StatusOr<std::unique_ptr<Storage>> storage =
      OpenStorage(config.load(), {.s3_endpoint = config.s3_endpoint()});
  const std::string& format = config.load_format();
  std::string text = absl::StrCat("load=", config.load(), " ");
  if (IsFile(config.load())) {
    absl::StrAppend(&text, "is no checkpoint in ",
                    format.empty() ? "a known format" : absl::StrCat("the format ", format));
  } else if (storage.ok()) {
    absl::StrAppend(&text, "holds no checkpoint",
                    format.empty() ? "" : absl::StrCat(" in the format ", format), ": ",
                    ckpt::convert::DescribeContents(**storage));
  } else {
    absl::StrAppend(&text, ckpt::convert::DescribeAbsence(config.load()));
  }
  return absl::NotFoundError(absl::StrCat(text, "; without load, a run begins at step 0"));
}

absl::Status WithOlderStep(const absl::Status& status, std::optional<int64_t> older_step) {
  if (!older_step.has_value()) return status;
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; --ckpt-step=", *older_step,
                                                  " resumes from the checkpoint before"));
}

bool Saves(const TrainConfig& config) {
  return !config.checkpoint().save().empty() && config.checkpoint().enable_save_ckpt() &&
         config.training().train_iters() > 0;
}

bool ResumesLatest(const CheckpointConfig& config) {
  return ResumesItsOwn(config) && !ChoosesOwnStep(config);
}

absl::Status ContinueFromSaved(const TrainConfig& config, const RankGroup& group,
                               ckpt::FolderLock* lock, const NoteSink& notes,
                               const UseSavedRun& use, std::optional<SavedRun> replica) {
  const CheckpointConfig& checkpoint = config.checkpoint();
  if (ResumesItsOwn(checkpoint)) {
    TESSERA_ASSIGN_OR_RETURN(const bool resumed,
                             ResumeOwn(config, group, lock, notes, use, std::move(replica)));
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
  if (group.ranks.rank() == 0) {
    TESSERA_ASSIGN_OR_RETURN(SavedRun run, FindToLoad(config, notes));
    TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast(Encode(run), group.deadline).status());
    TESSERA_RETURN_IF_ERROR(use(std::move(run)));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const std::string found, group.ranks.Broadcast("", group.deadline));
    TESSERA_ASSIGN_OR_RETURN(SavedRun run, Decode(found, config));
    TESSERA_RETURN_IF_ERROR(use(std::move(run)));
  }
  return AbandonLaterSteps(config, group, lock, notes);
}

absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const TrainConfig& config,
                                                     const RankGroup& group,
                                                     const NoteSink& notes) {
  std::optional<SavedRun> found;
  TESSERA_RETURN_IF_ERROR(
      ContinueFromSaved(config, group, /*lock=*/nullptr, notes, [&](std::optional<SavedRun> saved) {
        found = std::move(saved);
        return absl::OkStatus();
      }));
  return found;
}

absl::Status CheckTellsProgress(const SavedRun& saved, const TrainConfig& config) {
  const CheckpointConfig& settings = config.checkpoint();
  const LoadContent content = LoadContentOf(settings);
  const std::string who = saved.foreign_format.empty()
                              ? saved.Describe()
                              : absl::StrCat(saved.Describe(), " (", saved.foreign_format, ")");
  const ckpt::TrainerState& trainer = saved.manifest().trainer();
  if (content.scheduler && !ckpt::convert::TellsStep(saved.manifest())) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " does not tell its step; --finetune takes the weights alone and starts ",
                     "at step 0, --ckpt-step=N states the step"));
  }
  if (content.sampler && !trainer.has_data()) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, " does not tell its position in the data; --load-content=model,optimizer,scheduler ",
        "reads the data from the beginning, --consumed-samples=N continues after N samples"));
  }
  if (settings.has_consumed_samples() &&
      settings.consumed_samples() != trainer.data().consumed_samples()) {
    return absl::FailedPreconditionError(absl::StrCat(
        who, " tells its position in the data, ", trainer.data().consumed_samples(),
        " samples, which differs from consumed_samples=", settings.consumed_samples()));
  }
  return absl::OkStatus();
}

TrainConfig SettingsFor(TrainConfig config, const std::optional<SavedRun>& saved) {
  if (!saved.has_value() || !saved->is_own || LoadsItsOwn(config.checkpoint())) return config;
  CheckpointConfig& checkpoint = *config.mutable_checkpoint();
  checkpoint.clear_ckpt_step();
  checkpoint.clear_consumed_samples();
  checkpoint.set_load_content("all");
  checkpoint.set_finetune(false);
  checkpoint.set_no_load_optim(false);
  checkpoint.set_no_load_rng(false);
  checkpoint.set_load_tensors("");
  checkpoint.set_allow_missing(false);
  checkpoint.set_allow_unexpected(false);
  return config;
}

absl::StatusOr<std::string> DescribeSkipped(const std::string& folder, int64_t step,
                                            const std::string& s3_endpoint) {
  const absl::StatusOr<std::unique_ptr<Storage>> storage =
      OpenStorage(folder, {.s3_endpoint = s3_endpoint});
  if (absl::IsNotFound(storage.status())) return "";
  TESSERA_RETURN_IF_ERROR(storage.status());
  TESSERA_ASSIGN_OR_RETURN(const std::string skipped, ckpt::DescribeUnfinished(**storage, step));
  return skipped.empty() ? "" : absl::StrCat("skipped in ", folder, ": ", skipped);
}

absl::StatusOr<std::unique_ptr<ckpt::FolderLock>> LockSaveFolder(const TrainConfig& config,
                                                                 const RankGroup& group,
                                                                 const NoteSink& notes,
                                                                 absl::Duration wait) {
  if (!Saves(config)) return nullptr;
  std::unique_ptr<ckpt::FolderLock> lock;
  if (group.ranks.rank() == 0) {
    TESSERA_ASSIGN_OR_RETURN(lock, LockOnThisRank(config.checkpoint(), notes, wait));
  }
  // The folder exists and is locked before any rank continues.
  TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast("", group.deadline).status());
  return lock;
}

absl::Status CheckLaterSteps(const TrainConfig& config, int64_t step, bool from_own,
                             const RankGroup& group) {
  if (!Saves(config)) return absl::OkStatus();
  if (group.ranks.rank() == 0) {
    TESSERA_RETURN_IF_ERROR(CheckLaterOnThisRank(config.checkpoint(), step, from_own));
  }
  return group.ranks.Broadcast("", group.deadline).status();
}

}  // namespace tessera
