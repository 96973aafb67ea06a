#include "checkpoint/include/checkpoint_manager.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/manager/folder_lock.h"
#include "checkpoint/manager/resume.h"
#include "checkpoint/manager/retention.h"
#include "checkpoint/manager/save_schedule.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "checkpoint/save/plan_cache.h"
#include "checkpoint/save/run_save.h"
#include "checkpoint/save/save_hooks.h"
#include "storage/tiered/staging_folder.h"

namespace tessera::ckpt {
namespace {

void AddNote(SaveReport& report, std::string_view note) {
  absl::StrAppend(&report.note, report.note.empty() ? "" : "; ", std::string(note));
}

absl::StatusOr<std::unique_ptr<FolderLock>> LockFolder(std::string_view name,
                                                       const OpenStorageOptions& open) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, OpenStorage(name, open));
  return FolderLock::Acquire(std::move(storage), {});
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointManager>> CheckpointManager::Open(
    std::string_view name, CheckpointManagerOptions options, const OpenStorageOptions& open) {
  SingleProcessGroup alone;
  ProcessGroup& group = options.save.group != nullptr ? *options.save.group : alone;
  const OpenStorageOptions creating = ForSaving(open);
  absl::StatusOr<std::unique_ptr<FolderLock>> lock = nullptr;
  if (group.rank() == 0) lock = LockFolder(name, creating);
  TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, lock.status(), options.save.deadline));
  absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(name, creating);
  TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, storage.status(), options.save.deadline));

  if (*lock != nullptr) {
    FolderLock* const held = lock->get();
    options.resume.lock = held;
    SaveOptions& saves = options.background.has_value() ? options.background->save : options.save;
    saves.before_commit = [held, before = std::move(saves.before_commit)]() -> absl::Status {
      TESSERA_RETURN_IF_ERROR(held->Confirm());
      return before ? before() : absl::OkStatus();
    };
  }
  auto manager = std::make_unique<CheckpointManager>(*std::move(storage), std::move(options));
  manager->lock_ = *std::move(lock);
  return manager;
}

CheckpointManager::CheckpointManager(std::shared_ptr<Storage> storage,
                                     CheckpointManagerOptions options)
    : storage_(std::move(storage)),
      options_(std::move(options)),
      retention_(std::make_unique<Retention>(*storage_, options_.keep)),
      plan_cache_(std::make_unique<PlanCache>()),
      began_(SteadyNow()) {
  if (!options_.background.has_value()) return;
  background_ = std::make_unique<AsyncSaver>(*storage_, *options_.background, Hooks());
}

CheckpointManager::~CheckpointManager() = default;

SaveHooks CheckpointManager::Hooks() {
  return {.choose_root = [this](const PlannedSave& planned) { return ChooseRoot(planned); },
          .plan_cache = plan_cache_.get(),
          .on_committed = [this](SaveReport& report) { AfterCommit(report); }};
}

absl::StatusOr<ResumeResult> CheckpointManager::TryResume(const StateDict& state) {
  const LoadOnThisRank load = [&](const Checkpoint& checkpoint) {
    LoadOptions load_options;
    load_options.group = &group();
    load_options.deadline = options_.save.deadline;
    return checkpoint.Load(state, load_options).status();
  };
  TESSERA_ASSIGN_OR_RETURN(ResumeResult resumed,
                           ResumeFromLatest(storage_, group(), options_.resume, load));
  if (resumed.checkpoint.has_value()) resumed_step_ = resumed.checkpoint->step();
  return resumed;
}

absl::StatusOr<SaveDecision> CheckpointManager::TrySave(StepState now, const StateDict& state,
                                                        const Metadata& metadata) {
  if (schedule_ == nullptr) {
    schedule_ = std::make_unique<SaveSchedule>(options_.schedule, resumed_step_);
  }
  CollectOutcomes();
  // One clock decides for all ranks, and one view of what is in flight.
  int64_t facts[2] = {absl::ToInt64Nanoseconds(SteadyNow() - began_), save_in_flight() ? 1 : 0};
  if (group().size() > 1) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string sent,
        group().Broadcast(absl::StrCat(facts[0], " ", facts[1]), options_.save.deadline));
    const size_t space = sent.find(' ');
    if (space == sent.npos || !absl::SimpleAtoi(sent.substr(0, space), &facts[0]) ||
        !absl::SimpleAtoi(sent.substr(space + 1), &facts[1])) {
      return absl::InternalError("rank 0's message about the time does not parse");
    }
  }
  now.elapsed = absl::Nanoseconds(facts[0]);
  now.save_in_flight = facts[1] != 0;
  const SaveDecision decision = schedule_->AfterStep(now);
  const bool ends = decision.end != EndReason::kNone;
  if (ends) WaitForSaves();  // so that the last save is not skipped
  if (decision.save != SaveKind::kNone) {
    TESSERA_RETURN_IF_ERROR(Save({now.step, decision.save == SaveKind::kRolling, metadata}, state));
  }
  if (ends) WaitForSaves();
  return decision;
}

absl::Status CheckpointManager::Save(const SaveRequest& request, const StateDict& state) {
  if (background_ != nullptr) {
    ++started_;
    background_->Start(request, state);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(SaveReport report,
                           SaveNow(*storage_, request, state, options_.save, Hooks()));
  AfterCommit(report);
  done_.push_back({.step = request.step, .report = std::move(report)});
  return absl::OkStatus();
}

void CheckpointManager::Refuse(int64_t step, const absl::Status& error) {
  ++started_;
  background_->Refuse(step, error);
}

void CheckpointManager::Prepare(const StateDict& state) {
  if (background_ != nullptr) background_->Prepare(state);
}

void CheckpointManager::WaitUntilCopied(const void* data, uint64_t size_bytes) {
  if (background_ != nullptr) background_->WaitUntilCopied(data, size_bytes);
}

void CheckpointManager::WaitUntilAllCopied() {
  if (background_ != nullptr) background_->WaitUntilAllCopied();
}

void CheckpointManager::CollectOutcomes() {
  if (background_ == nullptr) return;
  while (std::optional<SaveOutcome> outcome = background_->Poll()) {
    ++finished_;
    done_.push_back(*std::move(outcome));
  }
}

void CheckpointManager::WaitForSaves() {
  if (background_ == nullptr) return;
  for (SaveOutcome& outcome : background_->Finish()) {
    ++finished_;
    done_.push_back(std::move(outcome));
  }
}

std::vector<SaveOutcome> CheckpointManager::Poll() {
  CollectOutcomes();
  return std::exchange(done_, {});
}

std::vector<SaveOutcome> CheckpointManager::Finish() {
  WaitForSaves();
  return std::exchange(done_, {});
}

// On rank 0, before a save writes: where it goes. Empties a rolling slot; where the disk is too
// full, deletes what may go.
absl::StatusOr<std::string> CheckpointManager::ChooseRoot(const PlannedSave& planned) {
  std::string root;
  if (planned.rolling) {
    TESSERA_ASSIGN_OR_RETURN(root, EmptyRollingSlot(*storage_));
  }
  room_note_.clear();
  // The manifest and the file system's own records are small beside the data.
  const uint64_t needed_bytes = planned.data_bytes + planned.data_bytes / 64 + (64 << 10);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> deleted,
      retention_->MakeRoom({planned.step, planned.rolling, needed_bytes}, absl::Now()));
  if (!deleted.empty()) {
    room_note_ = absl::StrCat("the disk is full: ", absl::StrJoin(deleted, " and "),
                              " made room for step ", planned.step);
  }
  return root;
}

// Deletes what a new checkpoint makes superfluous. An error is a note: the checkpoint is complete.
void CheckpointManager::AfterCommit(SaveReport& report) {
  const bool permanent = report.directory.find('/') == report.directory.npos;
  if (group().rank() == 0 && permanent) {
    if (const absl::Status pruned = retention_->Apply(absl::Now()); !pruned.ok()) {
      AddNote(report, absl::StrCat("older checkpoints are still there: ", pruned.message()));
    }
  }
  if (!room_note_.empty()) AddNote(report, room_note_);
  Storage* const staging = storage_->staging();
  if (staging == nullptr) return;
  if (const absl::Status forgotten = ForgetCopiesBut(*staging, report.directory); !forgotten.ok()) {
    AddNote(report, absl::StrCat("older copies are still there: ", forgotten.message()));
  }
}

}  // namespace tessera::ckpt
