#include "checkpoint/include/checkpoint_manager.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/units.h"
#include "checkpoint/collective/hosts.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/internal/job_saves.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/save_schedule.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/manager/stop_file.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/scan/verify.h"
#include "storage/lock/folder_lock.h"
#include "storage/tiered/staging_folder.h"

namespace tessera::ckpt {
namespace {

// In the folder: the identity of the stop file's request that has ended the last job. Even where
// the checkpoint of that step is damaged later, the same request ends no other one.
constexpr char kObeyedStopFile[] = ".stop_file";
constexpr uint64_t kMaxIdentityBytes = 1024;

constexpr char kAdviceOnLaterSteps[] =
    "resume from there (auto_resume), quarantine them (AbandonLater(), abandon_later()), or save "
    "to another folder";

void AddNote(SaveReport& report, std::string_view note) {
  absl::StrAppend(&report.note, report.note.empty() ? "" : "; ", std::string(note));
}

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
    OpenStopFile();
    if (storage_ == nullptr || !options_.schedule.saves) return;
    retention_.emplace(*storage_, options_.keep);
    if (!options_.background.has_value()) return;
    background_ = HookedSavers::Make(*storage_, *options_.background, Hooks());
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
    Hosts hosts;
    if (staging_ != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(hosts, Hosts::Find(group(), *staging_, "", options_.save.timeout));
    }
    const LoadOnThisRank load_intact = [&](const Checkpoint& checkpoint) {
      if (staging_ != nullptr) CheckStagedFiles(checkpoint, hosts);
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
    Begin(resumes ? resumed.checkpoint->step() : 0, std::nullopt);
    return resumed;
  }

  absl::StatusOr<std::vector<std::string>> AbandonLater(int64_t step) override {
    absl::StatusOr<std::vector<std::string>> moved = std::vector<std::string>();
    if (group().rank() == 0 && storage_ != nullptr && options_.schedule.saves) {
      const absl::Status held = ConfirmFolder();
      if (!held.ok()) moved = held;
      if (held.ok()) moved = ckpt::AbandonLater(*storage_, step);
    }
    TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group(), moved.status(), options_.save.timeout));
    return moved;
  }

  void Begin(int64_t step, std::optional<int64_t> last_step) override {
    if (last_step.has_value()) options_.schedule.last_step = *last_step;
    stop_requests_ = StopRequests(step);
    began_at_ = step;
    may_find_later_ = !has_saved_;
    schedule_ = SaveSchedule(options_.schedule);
    began_ = SteadyNow();
    end_ = EndReason::kNone;
    // What a killed job has left and no load needs; a failure does no harm.
    if (staging_ != nullptr) DeleteStagedFilesBut(*staging_, resumed_directory_).IgnoreError();
  }

  absl::StatusOr<SaveDecision> TrySave(const StepState& now,
                                       const GiveStateToSave& describe) override {
    TESSERA_ASSIGN_OR_RETURN(const SaveDecision decision, Decide(now, nullptr));
    TESSERA_RETURN_IF_ERROR(ErrorOf(decision.trouble));
    const bool ends = decision.end != EndReason::kNone;
    if (ends) WaitForSaves();  // so that the last save is not skipped
    if (decision.save != SaveKind::kNone) {
      const absl::StatusOr<StateToSave> what = describe();
      if (!what.ok()) TakeAnnounced();
      TESSERA_RETURN_IF_ERROR(what.status());
      TESSERA_RETURN_IF_ERROR(
          Save({now.step, decision.save == SaveKind::kRolling, *what->metadata}, *what->state));
    }
    if (ends) {
      WaitForSaves();
      DeleteStagedFilesOfCompleteJob();
    }
    return decision;
  }

  absl::StatusOr<SaveDecision> Decide(const StepState& now, const SumOverRanks& sum) override {
    StepFacts facts = Observe(now);
    if (sum != nullptr) {
      TESSERA_RETURN_IF_ERROR(sum(facts.counts));
    } else {
      TESSERA_ASSIGN_OR_RETURN(facts, AddOverRanks(group(), facts, options_.save.timeout));
    }
    const KnownFacts known = Decode(now.step, facts);
    elapsed_ = known.elapsed;
    const SaveDecision decision = schedule_.AfterStep(known);
    end_ = decision.end;
    const bool saves = decision.save != SaveKind::kNone && decision.trouble == SaveTrouble::kNone;
    if (background_ != nullptr && saves) {
      ++announced_;
      ++started_;
    }
    return decision;
  }

  absl::Status Save(const SaveRequest& request, const StateDict& state) override {
    if (!retention_.has_value()) {
      return absl::FailedPreconditionError("the job does not save (SaveScheduleOptions::saves)");
    }
    has_saved_ = true;
    may_find_later_ = false;
    if (background_ != nullptr) {
      NoteStarted();
      background_->Start(request, state);
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(SaveReport report,
                             SaveNow(*storage_, request, state, options_.save, Hooks()));
    AfterCommit(report);
    Add({.step = request.step, .report = std::move(report)});
    return absl::OkStatus();
  }

  void Refuse(int64_t step, const absl::Status& error) override {
    if (background_ != nullptr) {
      NoteStarted();
      return background_->Refuse(step, error);
    }
    Add({step, retention_ ? RefuseNow(*storage_, step, error, options_.save, Hooks()) : error});
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

  bool save_in_flight() const override { return started_ > finished_; }

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
    const std::string last =
        last_save().ok() ? "" : absl::StrCat("; the last one: ", last_save().message());
    switch (trouble) {
      case SaveTrouble::kNone:
        return absl::OkStatus();
      case SaveTrouble::kNoRoom:
        WaitForSaves();
        return last_save();
      case SaveTrouble::kFailures:
        return absl::AbortedError(absl::StrCat("nothing can be saved to ", storage_->Describe(""),
                                               ": ", options_.failures.max_failed_saves,
                                               " saves in a row have failed (max_failed_saves)",
                                               last));
      case SaveTrouble::kTooLong:
        return absl::AbortedError(
            absl::StrCat("no checkpoint has been saved to ", storage_->Describe(""), " for ",
                         absl::FormatDuration(options_.failures.max_without_checkpoint),
                         " (max_without_checkpoint)", last));
      case SaveTrouble::kFolderTaken:
        // Rank 0 alone knows more.
        TESSERA_RETURN_IF_ERROR(CheckFolder());
        return absl::FailedPreconditionError(
            absl::StrCat("another job saves to ", storage_->Describe("")));
      case SaveTrouble::kLaterSteps:
        if (!later_steps_.ok()) return later_steps_;  // on rank 0
        return absl::FailedPreconditionError(absl::StrCat(
            storage_->Describe(""), " holds checkpoints of later steps than this run starts from; ",
            kAdviceOnLaterSteps));
    }
    return absl::OkStatus();
  }

  absl::Status CheckFolder() const override {
    return lock_ != nullptr ? lock_->Check() : absl::OkStatus();
  }

  void Abandon() override {
    if (lock_ != nullptr) lock_->Abandon();
    if (storage_ != nullptr) storage_->Abandon();
  }

  Storage& storage() const override { return *storage_; }

 private:
  ProcessGroup& group() { return options_.save.group != nullptr ? *options_.save.group : alone_; }

  void Say(const std::string& sentence) const {
    if (options_.notes) options_.notes(sentence);
  }

  SaveHooks Hooks() {
    return {.choose_root = [this](const PlannedSave& planned) { return ChooseRoot(planned); },
            .may_commit = [this] { return ConfirmFolder(); },
            .plan_cache = &plan_cache_,
            .on_committed = [this](SaveReport& report) { AfterCommit(report); }};
  }

  // Returns an error in a job that has lost the folder, whose checkpoints are another one's by now.
  absl::Status ConfirmFolder() { return lock_ != nullptr ? lock_->Confirm() : absl::OkStatus(); }

  void OpenStopFile() {
    if (options_.stop_file_path.empty()) return;
    std::string obeyed;
    if (storage_ != nullptr && options_.schedule.saves) {
      obeyed = ReadAll(*storage_, kObeyedStopFile, kMaxIdentityBytes).value_or("");
    }
    stop_file_ = std::make_unique<StopFile>(options_.stop_file_path, obeyed);
  }

  // Ignores failures, which do no harm.
  void RememberStopFile() {
    WriteAll(*storage_, kObeyedStopFile, stop_file_->Identity(stop_requests_.handled_version()))
        .IgnoreError();
    if (staging_ != nullptr) staging_->Delete(kObeyedStopFile).IgnoreError();
  }

  // Returns the facts of this rank after a step.
  StepFacts Observe(const StepState& now) {
    CollectOutcomes();
    KnownFacts known = {.step = now.step,
                        .stop_signal = now.stop_signal,
                        .program_ends = now.program_ends,
                        .healthy = now.healthy};
    if (stop_file_ != nullptr) {
      const std::string note = stop_file_->TakeNote();
      if (!note.empty()) Say(note);
      known.stop_file = stop_requests_.AfterStep(now.step, stop_file_->Poll());
      if (known.stop_file == StopFileAsks::kSaveAndEnd) stopped_at_ = now.step;
    }
    known.elapsed = SteadyNow() - began_;
    known.save_in_flight = save_in_flight();
    known.trouble = FindTrouble(known);
    return Encode(known, /*is_rank_0=*/group().rank() == 0);
  }

  // Returns the trouble that this rank knows of; that of rank 0 counts.
  SaveTrouble FindTrouble(const KnownFacts& known) {
    if (!CheckFolder().ok()) return SaveTrouble::kFolderTaken;
    if (!options_.schedule.saves) return SaveTrouble::kNone;
    if (HasLaterSteps(known.step)) return SaveTrouble::kLaterSteps;
    return failed_saves_.Judge(known.elapsed);
  }

  // Looks for checkpoints of later steps than the job begins at, before it saves its first one. A
  // folder that cannot be listed is looked at again after the next step.
  bool HasLaterSteps(int64_t step) {
    if (!may_find_later_ || group().rank() != 0) return false;
    later_steps_ = CheckLaterSteps(*storage_, began_at_.value_or(step - 1), kAdviceOnLaterSteps);
    may_find_later_ = !later_steps_.ok();
    return absl::IsFailedPrecondition(later_steps_);
  }

  // Deletes damaged copies, each checked by one rank of its host. A load would read their originals
  // all the same.
  void CheckStagedFiles(const Checkpoint& checkpoint, const Hosts& hosts) {
    std::vector<uint32_t> files;
    for (int f = 0; f < checkpoint.manifest().files_size(); ++f) {
      if (hosts.does(group().rank(), f)) files.push_back(f);
    }
    const StagedFiles staged =
        DeleteDamagedStagedFiles(*staging_, checkpoint.directory(), checkpoint.manifest(), files);
    const std::string from = staging_->Describe("");
    if (staged.intact_bytes > 0) {
      Say(absl::StrCat("reading ", HumanBytes(staged.intact_bytes), " of ",
                       storage_->Describe(checkpoint.directory()), " from copies in ", from));
    }
    if (staged.deleted_files > 0) {
      Say(absl::StrCat("damaged copies in ", from, " are deleted: ", staged.deleted_files));
    }
    if (staged.unknown_files > 0) {
      Say(absl::StrCat("copies in ", from, " stay that cannot be checked: ", staged.unknown_files,
                       ", the first: ", staged.first_unknown.message()));
    }
  }

  // No restart will need them. Ignores failures, which do no harm.
  void DeleteStagedFilesOfCompleteJob() {
    const bool is_complete = end_ == EndReason::kLastStep && announced_ == 0 && last_save().ok();
    if (staging_ == nullptr || !is_complete) return;
    DeleteStagedFilesBut(*staging_, "").IgnoreError();
    RemoveStagingFolder(*staging_);
  }

  void NoteStarted() {
    if (announced_ > 0) {
      --announced_;
    } else {
      ++started_;
    }
  }

  void TakeAnnounced() {
    if (announced_ == 0) return;
    --announced_;
    --started_;
  }

  void Add(SaveOutcome outcome) {
    if (background_ != nullptr) ++finished_;
    failed_saves_.Add(outcome.report.status(), elapsed_);
    if (outcome.report.ok() && stopped_at_ == outcome.step) RememberStopFile();
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

  // Returns the root of a save that rank 0 is about to write. Empties a rolling slot; if the disk
  // is too full, deletes checkpoints that retention allows.
  absl::StatusOr<std::string> ChooseRoot(const PlannedSave& planned) {
    TESSERA_RETURN_IF_ERROR(ConfirmFolder());
    std::string root;
    if (planned.rolling) {
      TESSERA_ASSIGN_OR_RETURN(root, EmptyRollingSlot(*storage_));
    }
    room_note_.clear();
    // The manifest and the file system's own records are small beside the data.
    const uint64_t needed_bytes = planned.data_bytes + planned.data_bytes / 64 +
                                  std::min<uint64_t>(planned.data_bytes, 64 << 10);
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::string> deleted,
        retention_->MakeRoom({planned.step, planned.rolling, needed_bytes}, absl::Now()));
    if (!deleted.empty()) {
      room_note_ = absl::StrCat("the disk is full: ", absl::StrJoin(deleted, " and "),
                                " made room for step ", planned.step);
    }
    return root;
  }

  // Deletes what a new checkpoint makes superfluous. An error is a note: the checkpoint is
  // complete.
  void AfterCommit(SaveReport& report) {
    if (group().rank() == 0 && options_.on_commit) options_.on_commit(report);
    // The other ranks wait for no answer of this one.
    CatchNoMemory("delete older checkpoints", [&] { return CleanUp(report); }).IgnoreError();
  }

  absl::Status CleanUp(SaveReport& report) {
    const bool permanent = report.directory.find('/') == report.directory.npos;
    if (group().rank() == 0 && permanent) {
      const std::optional<int64_t> step = ParseStepDirectoryName(report.directory);
      absl::Status pruned = ConfirmFolder();
      if (pruned.ok()) pruned = retention_->Apply(absl::Now(), step);
      if (!pruned.ok()) {
        AddNote(report, absl::StrCat("older checkpoints are still there: ", pruned.message()));
      }
    }
    if (!room_note_.empty()) AddNote(report, room_note_);
    if (staging_ == nullptr) return absl::OkStatus();
    const absl::Status forgotten = DeleteStagedFilesBut(*staging_, report.directory);
    if (!forgotten.ok()) {
      AddNote(report, absl::StrCat("older copies are still there: ", forgotten.message()));
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<FolderLock> lock_;  // on rank 0
  const std::shared_ptr<Storage> storage_;  // null: a job that does not save has none
  CheckpointManagerOptions options_;
  Storage* const staging_;  // its staging tier, if the job saves; may be null
  SingleProcessGroup alone_;
  std::optional<Retention> retention_;  // used by the saving thread
  std::string room_note_;               // used by the saving thread: what was deleted to make room
  PlanCache plan_cache_;                // used by the saving thread

  SaveSchedule schedule_;
  StopRequests stop_requests_;
  std::optional<int64_t> began_at_;      // the step of Begin(); nullopt: the one before the first
  bool may_find_later_ = true;           // whether HasLaterSteps() still looks
  bool has_saved_ = false;               // so that later steps may be the job's own
  absl::Status later_steps_;             // what it has found, on rank 0
  std::unique_ptr<StopFile> stop_file_;  // on the ranks that name one
  std::optional<int64_t> stopped_at_;    // the step at which this rank's has asked for the end
  FailedSaves failed_saves_;
  absl::Duration began_;
  absl::Duration elapsed_;            // since then, when ranks decided last
  EndReason end_ = EndReason::kNone;  // which they decided then
  std::string resumed_directory_;     // whose staged files stay until the next save

  std::vector<SaveOutcome> done_;  // not returned yet
  int64_t started_ = 0;            // saves in the background, decided upon or begun
  int64_t finished_ = 0;
  int64_t announced_ = 0;                   // those of them that have not begun
  std::unique_ptr<AsyncSaver> background_;  // its thread uses the members above
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
