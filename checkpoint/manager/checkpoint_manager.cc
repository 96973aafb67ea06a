#include "checkpoint/include/checkpoint_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/no_memory.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "base/units.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/collective/hosts.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/manager/job_facts.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/save_schedule.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "storage/lock/folder_lock.h"
#include "storage/tiered/staging_folder.h"

namespace tessera::ckpt {
namespace {

// Returns the data files whose copies in the staging tier this rank checks for its host.
std::vector<uint32_t> FilesToCheck(const Checkpoint& checkpoint, const Hosts& hosts, int rank) {
  std::vector<uint32_t> files;
  for (int f = 0; f < checkpoint.manifest().files_size(); ++f) {
    if (hosts.does(rank, f)) files.push_back(f);
  }
  return files;
}

// Deletes damaged copies of these files from the staging tier, so that a load reads the originals.
void CheckStagedFiles(const Storage& storage, Storage& staging, const Checkpoint& checkpoint,
                      const std::vector<uint32_t>& files, const Notes& notes) {
  const StagedFiles staged =
      DeleteDamagedStagedFiles(staging, checkpoint.directory(), checkpoint.manifest(), files);
  if (!notes) return;
  const std::string from = staging.Describe("");
  if (staged.intact_bytes > 0) {
    notes(absl::StrCat("reading ", HumanBytes(staged.intact_bytes), " of ",
                       storage.Describe(checkpoint.directory()), " from copies in ", from));
  }
  if (staged.deleted_files > 0) {
    notes(absl::StrCat("damaged copies in ", from, " are deleted: ", staged.deleted_files));
  }
  if (staged.unknown_files > 0) {
    notes(absl::StrCat("copies in ", from, " stay that cannot be checked: ", staged.unknown_files,
                       ", the first: ", staged.first_unknown.message()));
  }
}

// Returns the outcome of the second attempt at a save, with the error of the first.
absl::StatusOr<SaveReport> After(const absl::Status& first, absl::StatusOr<SaveReport> second) {
  const std::string failed = absl::StrCat("the first attempt failed: ", first.message());
  if (!second.ok()) {
    return WithMessage(second.status(), absl::StrCat(second.status().message(), "; ", failed));
  }
  absl::StrAppend(&second->note, second->note.empty() ? "" : "; ", failed);
  return second;
}

// Everything of a job but the work on its saving thread, which is housekeeping_.
class Manager final : public JobSaves {
 public:
  Manager(std::shared_ptr<Storage> storage, std::unique_ptr<FolderLock> lock,
          CheckpointManagerOptions options)
      : lock_(std::move(lock)),
        storage_(std::move(storage)),
        options_(std::move(options)),
        staging_(storage_ != nullptr && options_.schedule.saves ? storage_->staging() : nullptr),
        schedule_(options_.schedule),
        failed_saves_(options_.failures),
        began_(SteadyNow()) {
    const bool saves = storage_ != nullptr && options_.schedule.saves;
    stop_file_.Open(options_.stop_file_path, saves ? storage_.get() : nullptr);
    if (!saves) return;
    housekeeping_.emplace(*storage_, staging_, lock_.get(), options_, group().rank() == 0);
    if (!options_.background.has_value()) return;
    background_ = MakeAsyncSaver(*storage_, *options_.background, housekeeping_->Hooks());
  }

  ~Manager() override {
    background_ = nullptr;  // waits for a save in flight
    if (staging_ != nullptr) RemoveStagingFolder(*staging_);
  }

  absl::StatusOr<ResumeResult> TryResume(const StateDict& state,
                                         const ResumeOptions& options) override {
    const LoadOnThisRank load = [&](const Checkpoint& checkpoint) {
      const absl::Duration timeout = options_.save.timeout;
      return checkpoint.Load(state, {.group = &group(), .timeout = timeout}).status();
    };
    return TryResume(load, options);
  }

  absl::StatusOr<ResumeResult> TryResume(const LoadOnThisRank& load,
                                         const ResumeOptions& options) override {
    WaitForSaves();  // one could commit a later step, or read memory into which this loads
    Hosts hosts;
    if (staging_ != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(hosts, Hosts::Find(group(), *staging_, "", options_.save.timeout));
    }
    const LoadOnThisRank load_intact = [&](const Checkpoint& checkpoint) {
      if (staging_ != nullptr) {
        const std::vector<uint32_t> files = FilesToCheck(checkpoint, hosts, group().rank());
        CheckStagedFiles(*storage_, *staging_, checkpoint, files, options_.notes);
      }
      return load(checkpoint);
    };
    TESSERA_ASSIGN_OR_RETURN(ResumeResult resumed,
                             ResumeFromLatest(storage_, group(),
                                              {.quarantine = options_.schedule.saves,
                                               .step = options.step,
                                               .ignore_no_valid = options.ignore_no_valid,
                                               .lock = lock_.get(),
                                               .timeout = options_.save.timeout},
                                              load_intact));
    const bool resumes = resumed.checkpoint.has_value();
    resumed_directory_ = resumes ? resumed.checkpoint->directory() : "";
    if (housekeeping_.has_value() && resumes) housekeeping_->NoteLoaded(*resumed.checkpoint);
    Begin(resumes ? resumed.checkpoint->step() : 0, std::nullopt);
    return resumed;
  }

  absl::StatusOr<std::vector<std::string>> AbandonLater(int64_t step) override {
    WaitForSaves();
    absl::StatusOr<std::vector<std::string>> moved = std::vector<std::string>();
    if (group().rank() == 0 && storage_ != nullptr && options_.schedule.saves) {
      const absl::Status held = ConfirmFolder(lock_.get());
      moved = held.ok() ? ckpt::AbandonLater(*storage_, step) : held;
      if (housekeeping_.has_value()) housekeeping_->ForgetLoaded();
    }
    TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group(), moved.status(), options_.save.timeout));
    return moved;
  }

  void Begin(int64_t step, std::optional<int64_t> last_step) override {
    WaitForSaves();
    if (last_step.has_value()) options_.schedule.last_step = *last_step;
    stop_file_.Begin(step);
    later_steps_.Begin(step);
    schedule_ = SaveSchedule(options_.schedule);
    began_ = SteadyNow();
    end_ = EndReason::kNone;
    if (housekeeping_.has_value()) housekeeping_->NoteHealthy(step);
    // A killed job may have left copies that no load needs. A failure does no harm.
    if (staging_ != nullptr) DeleteStagedFilesBut(*staging_, resumed_directory_).IgnoreError();
  }

  absl::StatusOr<SaveDecision> TrySave(const StepState& now,
                                       const GiveStateToSave& describe) override {
    TESSERA_ASSIGN_OR_RETURN(const JobDecision decision, Decide(now, nullptr));
    TESSERA_RETURN_IF_ERROR(ErrorOf(decision.trouble));
    const bool ends = decision.end != EndReason::kNone;
    if (ends) WaitForSaves();  // so that the last save is not skipped
    if (decision.save != SaveKind::kNone) {
      bool throws = true;  // on this rank alone: the others save, unless they are told
      const auto what = CatchExceptions("describe the state", [&] {
        auto given = describe();
        throws = false;
        return given;
      });
      if (throws && background_ == nullptr) {
        return RefuseNow(*storage_, now.step, what.status(), options_.save, housekeeping_->Hooks());
      }
      if (throws) {
        Refuse(now.step, what.status());
      } else if (!what.ok()) {
        in_background_.Withdraw();
      }
      TESSERA_RETURN_IF_ERROR(what.status());
      const bool healthy = !decision.saves_unhealthy;
      TESSERA_RETURN_IF_ERROR(
          Save({now.step, *what->metadata, healthy}, *what->state, decision.save));
    }
    if (ends) {
      WaitForSaves();
      DeleteStagedFilesOfCompleteJob();
    }
    return decision;
  }

  absl::StatusOr<JobDecision> Decide(const StepState& now, const SumOverRanks& sum) override {
    StepFacts facts = Observe(now);
    if (sum != nullptr) {
      TESSERA_RETURN_IF_ERROR(sum(facts.counts));
    } else {
      TESSERA_ASSIGN_OR_RETURN(facts, AddOverRanks(group(), facts, options_.save.timeout));
    }
    const KnownFacts known = Decode(now.step, facts);
    elapsed_ = known.elapsed;
    if (known.healthy && housekeeping_.has_value()) housekeeping_->NoteHealthy(now.step);
    const JobDecision decision = schedule_.AfterStep(known);
    end_ = decision.end;
    const bool saves = decision.save != SaveKind::kNone && decision.trouble == SaveTrouble::kNone;
    if (background_ != nullptr && saves) in_background_.Announce();
    return decision;
  }

  absl::Status Save(const SaveRequest& request, const StateDict& state, SaveKind kind) override {
    if (!housekeeping_.has_value()) {
      return absl::FailedPreconditionError("the job does not save (SaveScheduleOptions::saves)");
    }
    later_steps_.NoteSave();
    const bool rolling = kind == SaveKind::kRolling;
    if (background_ != nullptr) {
      in_background_.Begin();
      StartSave(*background_, request, state, rolling);
      // The state of the last save stays as it is, and no later save makes room.
      if (end_ == EndReason::kNone) return absl::OkStatus();
      std::vector<SaveOutcome> outcomes = background_->Finish();
      if (const absl::Status first = outcomes.back().report.status(); RoomComesOnAll(first)) {
        StartSave(*background_, request, state, rolling);
        outcomes.back().report = After(first, background_->Finish().back().report);
      }
      AddAll(std::move(outcomes));
      return absl::OkStatus();
    }
    SaveHooks hooks = housekeeping_->Hooks();
    hooks.rolling = rolling;
    const auto save = [&] { return SaveNow(*storage_, request, state, options_.save, hooks); };
    absl::StatusOr<SaveReport> report = save();
    if (RoomComesOnAll(report.status())) report = After(report.status(), save());
    TESSERA_RETURN_IF_ERROR(report.status());
    housekeeping_->AfterCommit(*report);
    Add({.step = request.step, .report = *std::move(report)});
    return absl::OkStatus();
  }

  void Refuse(int64_t step, const absl::Status& error) override {
    if (background_ != nullptr) {
      in_background_.Begin();
      return background_->Refuse(step, error);
    }
    Add({step, housekeeping_
                   ? RefuseNow(*storage_, step, error, options_.save, housekeeping_->Hooks())
                   : error});
  }

  void Prepare(const StateDict& state) override {
    if (background_ != nullptr) background_->Prepare(state);
  }

  void WaitUntilCopied(const void* data, uint64_t size_bytes) override {
    if (background_ != nullptr) background_->WaitUntilCopied(data, size_bytes);
  }

  void WaitUntilAllCopied() override {
    if (background_ != nullptr) background_->WaitUntilAllCopied();
  }

  bool save_in_flight() const override { return in_background_.in_flight(); }

  std::vector<SaveOutcome> Poll() override {
    CollectOutcomes();
    return std::exchange(done_, {});
  }

  std::vector<SaveOutcome> Finish() override {
    WaitForSaves();
    DeleteStagedFilesOfCompleteJob();
    return std::exchange(done_, {});
  }

  const absl::Status& last_save() const override { return failed_saves_.last(); }

  absl::Status ErrorOf(SaveTrouble trouble) override {
    const int64_t failures = options_.failures.max_failed_saves;
    const std::string last =
        last_save().ok() ? "" : absl::StrCat("; the last one: ", last_save().message());
    switch (trouble) {
      case SaveTrouble::kNone:
        return absl::OkStatus();
      case SaveTrouble::kNoRoom:
        WaitForSaves();
        return last_save();
      case SaveTrouble::kFailures:
        return absl::AbortedError(absl::StrCat(
            "nothing can be saved to ", storage_->Describe(""), ": ", Counted(failures, "save"),
            failures == 1 ? " has" : " in a row have", " failed (max_failed_saves)", last));
      case SaveTrouble::kTooLong:
        return absl::AbortedError(
            absl::StrCat("no checkpoint has been saved to ", storage_->Describe(""), " for ",
                         absl::FormatDuration(options_.failures.max_without_checkpoint),
                         " (max_without_checkpoint)", last));
      case SaveTrouble::kFolderTaken:
        // Rank 0 alone knows more.
        TESSERA_RETURN_IF_ERROR(FolderIsHeld());
        return absl::FailedPreconditionError(
            absl::StrCat("another job saves to ", storage_->Describe("")));
      case SaveTrouble::kLaterSteps:
        TESSERA_RETURN_IF_ERROR(later_steps_.found());  // on rank 0
        return absl::FailedPreconditionError(absl::StrCat(
            storage_->Describe(""), " holds checkpoints of later steps than this run starts from; ",
            kAdviceOnLaterSteps));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFolder() const override {
    return storage_->LocalPath("").has_value() ? ConfirmFolder(lock_.get()) : FolderIsHeld();
  }

  void Abandon() override {
    if (lock_ != nullptr) lock_->Abandon();
    if (storage_ != nullptr) storage_->Abandon();
  }

  Storage& storage() const override { return *storage_; }

 private:
  ProcessGroup& group() { return options_.save.group != nullptr ? *options_.save.group : alone_; }

  // Returns the facts of this rank after a step.
  StepFacts Observe(const StepState& now) {
    CollectOutcomes();
    KnownFacts known = {.step = now.step,
                        .stop_signal = now.stop_signal,
                        .program_ends = now.program_ends,
                        .healthy = now.healthy};
    known.stop_file = stop_file_.AfterStep(now.step, options_.notes);
    known.elapsed = SteadyNow() - began_;
    known.save_in_flight = save_in_flight();
    known.trouble = FindTrouble(known);
    return Encode(known, /*is_rank_0=*/group().rank() == 0);
  }

  // Returns an error if it is known that another job has the folder. Never waits.
  absl::Status FolderIsHeld() const { return lock_ != nullptr ? lock_->Check() : absl::OkStatus(); }

  // Returns the trouble that this rank knows of. Ranks decide by that of rank 0.
  SaveTrouble FindTrouble(const KnownFacts& known) {
    if (!FolderIsHeld().ok()) return SaveTrouble::kFolderTaken;
    if (!options_.schedule.saves) return SaveTrouble::kNone;
    if (group().rank() == 0 && later_steps_.Find(*storage_, known.step)) {
      return SaveTrouble::kLaterSteps;
    }
    return failed_saves_.Judge(known.elapsed);
  }

  // No restart will need them. Ignores failures, which do no harm.
  void DeleteStagedFilesOfCompleteJob() {
    const bool is_complete =
        end_ == EndReason::kLastStep && !in_background_.announced() && last_save().ok();
    if (staging_ == nullptr || !is_complete) return;
    DeleteStagedFilesBut(*staging_, "").IgnoreError();
    RemoveStagingFolder(*staging_);
  }

  // Returns whether another attempt at the save that has ended so makes room, as rank 0 knows.
  bool RoomComesOnAll(const absl::Status& outcome) {
    if (!MayBeFreed(outcome)) return false;
    const absl::Status mine = RoomComes(outcome) ? absl::CancelledError("again") : absl::OkStatus();
    return absl::IsCancelled(AgreeOnStatus(group(), mine, options_.save.timeout));
  }

  void Add(SaveOutcome outcome) {
    if (background_ != nullptr) in_background_.Finish();
    failed_saves_.Add(outcome.report.status(), elapsed_);
    if (outcome.report.ok()) stop_file_.NoteSaved(outcome.step, staging_);
    done_.push_back(std::move(outcome));
  }

  void CollectOutcomes() {
    if (background_ != nullptr) AddAll(background_->Poll());
  }

  void WaitForSaves() {
    if (background_ != nullptr) AddAll(background_->Finish());
  }

  void AddAll(std::vector<SaveOutcome> outcomes) {
    for (SaveOutcome& outcome : outcomes) Add(std::move(outcome));
  }

  const std::unique_ptr<FolderLock> lock_;  // on rank 0
  const std::shared_ptr<Storage> storage_;  // null: a job that does not save has none
  CheckpointManagerOptions options_;
  Storage* const staging_;  // its staging tier, if the job saves; may be null
  SingleProcessGroup alone_;
  std::optional<SaveHousekeeping> housekeeping_;  // if the job saves; used by the saving thread

  SaveSchedule schedule_;
  LaterSteps later_steps_;
  StopFileOnce stop_file_;
  FailedSaves failed_saves_;
  absl::Duration began_;
  absl::Duration elapsed_;            // since then, when ranks decided last
  EndReason end_ = EndReason::kNone;  // which they decided then
  std::string resumed_directory_;     // whose staged files stay until the next save

  std::vector<SaveOutcome> done_;  // not returned yet
  BackgroundSaves in_background_;
  std::unique_ptr<AsyncSaver> background_;  // its thread uses housekeeping_
};

}  // namespace

absl::StatusOr<std::unique_ptr<JobSaves>> JobSaves::Open(std::shared_ptr<Storage> storage,
                                                         std::unique_ptr<Storage> to_lock,
                                                         CheckpointManagerOptions options) {
  SingleProcessGroup alone;
  ProcessGroup& group = options.save.group != nullptr ? *options.save.group : alone;
  if (options.async_upload) {
    return absl::InvalidArgumentError("async_upload is for a folder that is opened by its name");
  }
  if (options.notes) {
    options.notes = [notes = std::move(options.notes)](const std::string& sentence) {
      CatchExceptions("", [&] {
        notes(sentence);
        return absl::OkStatus();
      }).IgnoreError();
    };
  }
  absl::StatusOr<std::unique_ptr<FolderLock>> lock = nullptr;
  if (to_lock != nullptr && group.rank() == 0) {
    lock = FolderLock::Acquire(std::move(to_lock),
                               {.wait = options.lock_wait, .on_wait = options.notes});
  }
  const absl::Status agreed = AgreeOnStatus(group, lock.status(), options.save.timeout);
  TESSERA_RETURN_IF_ERROR(lock.ok() ? agreed : lock.status());
  if (*lock != nullptr && options.notes && !(*lock)->warning().empty()) {
    options.notes((*lock)->warning());
  }
  return std::make_unique<Manager>(std::move(storage), *std::move(lock), std::move(options));
}

}  // namespace tessera::ckpt
