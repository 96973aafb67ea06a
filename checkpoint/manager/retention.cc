#include "checkpoint/manager/retention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/errno_status.h"
#include "base/no_memory.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/internal/damage.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "storage/tiered/staging_folder.h"

namespace tessera::ckpt {
namespace {

// Returns the indices with a validation loss in ascending order of it, the newer first if equal.
std::vector<size_t> ByLoss(std::span<const RetentionCandidate> candidates) {
  std::vector<size_t> order;
  for (size_t i = candidates.size(); i-- > 0;) {
    const std::optional<double>& loss = candidates[i].validation_loss;
    if (loss.has_value() && !std::isnan(*loss)) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return *candidates[i].validation_loss; });
  return order;
}

// Returns the indices of the good ones from the newest to the first that is proven.
std::vector<size_t> NewestGood(std::span<const RetentionCandidate> candidates) {
  std::vector<size_t> newest;
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].good) newest.push_back(i);
    if (candidates[i].good && candidates[i].proven) break;
  }
  return newest;
}

void AddNote(std::string& notes, std::string_view note) {
  if (note.empty()) return;
  absl::StrAppend(&notes, notes.empty() ? "" : "; ", std::string(note));
}

// Returns "" or a note on the room that retention does not free.
std::string DescribeQuarantined(Storage& storage) {
  std::vector<std::string> names = storage.List("").value_or(std::vector<std::string>());
  std::erase_if(names, [](const std::string& name) {
    const size_t dot = name.find('.');
    const bool is_step = ParseStepDirectoryName(name.substr(0, dot)).has_value();
    return !is_step || dot == name.npos || absl::StrContains(name, ".discarded-");
  });
  if (names.empty()) return "";
  return absl::StrCat("what was renamed keeps its room until you delete it: ",
                      absl::StrJoin(names, " "));
}

// Adds a note about an error of a deletion.
void NoteUndeleted(std::string& notes, const absl::Status& error) {
  if (error.ok()) return;
  AddNote(notes, absl::StrCat("older checkpoints are still there: ", error.message()));
}

}  // namespace

std::vector<size_t> ChooseToDelete(const RetentionOptions& options,
                                   std::span<const RetentionCandidate> candidates, absl::Time now) {
  if (!options.deletes() || candidates.empty()) return {};
  const size_t count = candidates.size();
  std::vector<bool> kept(count);
  int64_t newer = 0;  // intact ones
  for (size_t i = count; i-- > 0;) {
    const RetentionCandidate& candidate = candidates[i];
    kept[i] = newer < std::max<int64_t>(options.newest, 1) ||
              (options.every_steps > 0 && candidate.step % options.every_steps == 0) ||
              (options.within > absl::ZeroDuration() && candidate.saved_at >= now - options.within);
    newer += candidate.intact ? 1 : 0;
  }
  // The best of each data, since losses of different data do not compare.
  std::map<std::string_view, int64_t> kept_by_data;
  for (const size_t i : ByLoss(candidates)) {
    if (kept_by_data[candidates[i].validation_data]++ < options.best) kept[i] = true;
  }
  for (const size_t i : NewestGood(candidates)) kept[i] = true;
  std::vector<size_t> deleted;
  for (size_t i = 0; i < count; ++i) {
    if (!kept[i]) deleted.push_back(i);
  }
  return deleted;
}

std::vector<size_t> ChooseToMakeRoom(const RetentionOptions& options,
                                     std::span<const RetentionCandidate> candidates,
                                     const RetentionCandidate& coming, absl::Time now) {
  const std::vector<size_t> good = NewestGood(candidates);
  if (good.empty()) return {};
  std::vector<size_t> chosen;
  const auto choose = [&](size_t i) {
    if (std::ranges::count(good, i) + std::ranges::count(chosen, i) == 0) chosen.push_back(i);
  };
  // Chooses permanent ones that the policy gives up. With `as_permanent`, the newest good one and
  // the coming one are taken as permanent.
  const auto choose_permanent = [&](bool as_permanent) {
    std::vector<size_t> indices;
    std::vector<RetentionCandidate> counted;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].rolling && !(as_permanent && i == good[0])) continue;
      indices.push_back(i);
      counted.push_back(candidates[i]);
    }
    if (as_permanent || !coming.rolling) counted.push_back(coming);
    for (const size_t i : ChooseToDelete(options, counted, now)) {
      if (i < indices.size()) choose(indices[i]);
    }
  };
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (options.deletes() && !candidates[i].rolling && !candidates[i].intact) choose(i);
  }
  choose_permanent(/*as_permanent=*/false);
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].rolling) choose(i);
  }
  choose_permanent(/*as_permanent=*/true);
  return chosen;
}

Retention::Retention(Storage& storage, const RetentionOptions& options)
    : storage_(storage),
      removal_(Removal::In(storage)),
      options_(options),
      healthy_step_(options.awaits_healthy_step ? 0 : std::numeric_limits<int64_t>::max()) {}

absl::Status Retention::Apply(absl::Time now, std::optional<int64_t> saved_step) {
  if (saved_step.has_value()) described_.erase(StepDirectoryName(*saved_step));
  if (!options_.deletes()) return absl::OkStatus();
  absl::Status first_error = SettleDiscarded(storage_, "");
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> directories,
                           ListStepDirectories(storage_, ""));
  std::erase_if(directories, [&](const CheckpointInfo& dir) {
    return !dir.readable.ok() || storage_.IsLink(dir.directory);
  });
  std::vector<const CheckpointInfo*> committed;
  for (const CheckpointInfo& dir : directories) {
    if (dir.committed) committed.push_back(&dir);
  }
  if (committed.empty()) return first_error;
  RetentionOptions others = options_;
  others.newest = 0;
  int64_t intact = 0;
  bool found_good = false;
  std::vector<RetentionCandidate> candidates(committed.size());
  std::vector<Described> known(committed.size());
  for (size_t i = committed.size(); i-- > 0;) {
    const bool is_surplus = !others.deletes() && found_good && intact >= options_.newest;
    known[i] = is_surplus ? Identify(*committed[i])
                          : DescribeOnce(*committed[i], committed[i]->step == saved_step);
    candidates[i] = known[i].candidate;
    candidates[i].proven = IsProven(candidates[i].step);
    first_error.Update(known[i].unknown);
    intact += candidates[i].intact ? 1 : 0;
    found_good |= candidates[i].good && candidates[i].proven;
  }

  bool tried = false;
  const auto remove = [&](const CheckpointInfo& dir, const std::optional<std::string>& judged) {
    tried = true;
    first_error.Update(RemoveUnlessRead(storage_, *removal_, dir, judged).status());
    described_.erase(dir.directory);  // what stays is described again: it may have been replaced
  };
  for (const size_t i : ChooseToDelete(options_, candidates, now)) {
    if (!known[i].unknown.ok() || committed[i]->step == saved_step) continue;
    remove(*committed[i], known[i].identity);
  }
  for (const CheckpointInfo& dir : directories) {
    if (!dir.committed && dir.step < committed.back()->step) remove(dir, std::nullopt);
  }
  if (tried) first_error.Update(storage_.SyncDirectory(""));
  return first_error;
}

absl::StatusOr<std::vector<std::string>> Retention::MakeRoom(const ComingSave& coming,
                                                             absl::Time now,
                                                             absl::Status* undeleted) {
  described_.erase(StepDirectoryName(coming.step));
  std::vector<std::string> deleted;
  at_limit_ = false;
  if (limit_bytes_ == kNoLimit && Lacking(coming, 0) == 0) return deleted;
  SettleDiscarded(storage_, "").IgnoreError();
  TESSERA_ASSIGN_OR_RETURN(const Droppable droppable, FindDroppable(coming, now));
  uint64_t held_bytes = droppable.held_bytes;
  at_limit_ = held_bytes + coming.needed_bytes > limit_bytes_;
  if (droppable.bytes < Lacking(coming, held_bytes)) return deleted;
  for (const auto& [checkpoint, described] : droppable.checkpoints) {
    if (Lacking(coming, held_bytes) == 0) break;
    described_.erase(checkpoint.directory);
    const absl::StatusOr<bool> removed =
        RemoveUnlessRead(storage_, *removal_, checkpoint, described.identity);
    if (undeleted != nullptr) undeleted->Update(removed.status());
    if (!removed.value_or(false)) continue;
    deleted.push_back(checkpoint.directory);
    held_bytes -= described.bytes;
  }
  return deleted;
}

bool Retention::NoteRefused(const ComingSave& refused, absl::Time now) {
  const absl::StatusOr<Droppable> droppable = FindDroppable(refused, now);
  if (!droppable.ok()) return false;
  const uint64_t held_bytes = droppable->held_bytes;
  if (Lacking(refused, held_bytes) == 0) {
    limit_bytes_ = held_bytes + refused.needed_bytes - 1;
    limit_is_proven_ |= at_limit_ && tests_limit_;
    tests_limit_ = false;
  }
  return droppable->bytes >= Lacking(refused, held_bytes);
}

void Retention::NoteCommitted() {
  if (!at_limit_ || limit_is_proven_) return;
  if (tests_limit_) limit_bytes_ = kNoLimit;
  tests_limit_ = !tests_limit_;
}

uint64_t Retention::Lacking(const ComingSave& coming, uint64_t held_bytes) const {
  const uint64_t limit = tests_limit_ ? kNoLimit : limit_bytes_;
  const uint64_t free =
      std::min(storage_.FreeBytes().value_or(kNoLimit), limit - std::min(limit, held_bytes));
  return coming.needed_bytes - std::min(free, coming.needed_bytes);
}

absl::StatusOr<Retention::Droppable> Retention::FindDroppable(const ComingSave& coming,
                                                              absl::Time now) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> saved, ListForResume(storage_));
  std::ranges::reverse(saved);  // by ascending step
  Droppable droppable;
  std::vector<RetentionCandidate> candidates;
  std::vector<std::pair<CheckpointInfo, Described>> found;
  for (const CheckpointInfo& checkpoint : saved) {
    // What is behind a link is the user's: it is neither deleted nor counted.
    const bool behind_link = checkpoint.rolling ? IsLinked(storage_, checkpoint.directory)
                                                : storage_.IsLink(checkpoint.directory);
    if (behind_link) continue;
    Described described = checkpoint.rolling ? Describe(checkpoint) : DescribeOnce(checkpoint);
    const bool intact = described.candidate.intact;
    if (!described.unknown.ok() || (checkpoint.rolling && !intact)) continue;
    if (!intact) described.bytes = BytesBelow(storage_, checkpoint.directory);
    droppable.held_bytes += described.bytes;
    candidates.push_back(described.candidate);
    candidates.back().proven = IsProven(checkpoint.step);
    found.emplace_back(checkpoint, described);
  }
  const RetentionCandidate next = {.step = coming.step, .rolling = coming.rolling, .good = false};
  for (const size_t i : ChooseToMakeRoom(options_, candidates, next, now)) {
    droppable.checkpoints.push_back(found[i]);
    droppable.bytes += found[i].second.bytes;
  }
  return droppable;
}

Retention::Described Retention::DescribeOnce(const CheckpointInfo& checkpoint, bool is_own) {
  const auto known = described_.find(checkpoint.directory);
  if (known != described_.end()) return known->second;
  Described described = Describe(checkpoint, is_own);
  if (described.candidate.intact) described_[checkpoint.directory] = described;
  return described;
}

Retention::Described Retention::Identify(const CheckpointInfo& checkpoint) {
  const absl::StatusOr<std::string> identity = ManifestIdentity(storage_, checkpoint.directory);
  return {.candidate = {.step = checkpoint.step, .rolling = checkpoint.rolling},
          .unknown = identity.status(),
          .identity = identity.value_or("")};
}

Retention::Described Retention::Describe(const CheckpointInfo& checkpoint, bool is_own) {
  Described described = Identify(checkpoint);
  const absl::StatusOr<Manifest> manifest = is_own ? ReadManifest(storage_, checkpoint.directory)
                                                   : ReadIntact(storage_, checkpoint.directory);
  RetentionCandidate& candidate = described.candidate;
  candidate.intact = candidate.good = manifest.ok();
  if (!manifest.ok() && !MayBeDamage(manifest.status())) described.unknown = manifest.status();
  if (!manifest.ok()) return described;
  const TrainerState& trainer = manifest->trainer();
  const int64_t created = manifest->producer().created_unix_ms();
  if (created != 0) candidate.saved_at = absl::FromUnixMillis(created);
  candidate.good = IsHealthy(*manifest);
  if (trainer.health().has_validation_loss()) {
    candidate.validation_loss = trainer.health().validation_loss();
    const auto data = trainer.extra().find(kValidationData);
    if (data != trainer.extra().end()) candidate.validation_data = data->second;
  }
  described.bytes = BytesOfFiles(*manifest);
  return described;
}

SaveHooks SaveHousekeeping::Hooks() {
  return {.choose_root = [this](const PlannedSave& planned) { return ChooseRoot(planned); },
          .may_commit = [this] { return ConfirmFolder(lock_); },
          .plan_cache = &plan_cache_,
          .on_committed = [this](SaveReport& report) { AfterCommit(report); },
          .on_failed = [this](const absl::Status& error) { return AfterFailure(error); }};
}

void SaveHousekeeping::AfterCommit(SaveReport& report) {
  const auto tell = [&] {
    if (is_rank_0_ && options_.on_commit) options_.on_commit(report);
    return absl::OkStatus();
  };
  // No other rank waits for this one here.
  CatchExceptions("delete older checkpoints", [&] {
    const absl::Status told = CatchExceptions("report the commit", tell);
    if (!told.ok()) AddNote(report.note, std::string(told.message()));
    return CleanUp(report);
  }).IgnoreError();
}

absl::Status SaveHousekeeping::AfterFailure(absl::Status error) {
  if (!is_rank_0_) return error;
  CatchExceptions("look for room", [&] {
    const bool lacks_room = MayBeFreed(error) && coming_.needed_bytes > 0;
    if (lacks_room && retention_.NoteRefused(coming_, absl::Now())) {
      MarkRoomComes(error);
    } else if (lacks_room) {
      AddNote(note_, DescribeQuarantined(storage_));
    }
    const std::string note = std::exchange(note_, "");
    if (!note.empty()) error = WithMessage(error, absl::StrCat(error.message(), "; ", note));
    return absl::OkStatus();
  }).IgnoreError();
  return error;
}

absl::StatusOr<std::string> SaveHousekeeping::ChooseRoot(const PlannedSave& planned) {
  TESSERA_RETURN_IF_ERROR(ConfirmFolder(lock_));
  std::string root;
  absl::Status undeleted;
  if (std::exchange(prunes_first_, false)) NoteUndeleted(note_, retention_.Apply(absl::Now()));
  if (planned.rolling) {
    TESSERA_ASSIGN_OR_RETURN(root, EmptyRollingSlot(storage_, known_good_, &undeleted));
    coming_is_healthy_ = IsHealthy(*planned.manifest);
  }
  // The manifest and the file system's own records are small beside the data.
  const uint64_t needed_bytes = planned.data_bytes + planned.data_bytes / 64 +
                                std::min<uint64_t>(planned.data_bytes, 64 << 10);
  coming_ = {planned.step, planned.rolling, needed_bytes};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> deleted,
                           retention_.MakeRoom(coming_, absl::Now(), &undeleted));
  NoteUndeleted(note_, undeleted);
  if (!deleted.empty()) {
    AddNote(note_, absl::StrCat("the disk is full: ", absl::StrJoin(deleted, " and "),
                                " made room for step ", planned.step));
  }
  return root;
}

absl::Status SaveHousekeeping::CleanUp(SaveReport& report) {
  const bool permanent = report.directory.find('/') == report.directory.npos;
  if (is_rank_0_ && !permanent) known_good_ = coming_is_healthy_ ? report.directory : "";
  if (is_rank_0_ && permanent) {
    const std::optional<int64_t> step = ParseStepDirectoryName(report.directory);
    absl::Status pruned = ConfirmFolder(lock_);
    if (pruned.ok()) pruned = retention_.Apply(absl::Now(), step);
    NoteUndeleted(report.note, pruned);
    prunes_first_ = !step.has_value() || !retention_.IsProven(*step);
  }
  if (is_rank_0_) retention_.NoteCommitted();
  if (!note_.empty()) AddNote(report.note, std::exchange(note_, ""));
  if (staging_ == nullptr) return absl::OkStatus();
  const absl::Status forgotten = DeleteStagedFilesBut(*staging_, report.directory);
  if (!forgotten.ok()) {
    AddNote(report.note, absl::StrCat("older copies are still there: ", forgotten.message()));
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
