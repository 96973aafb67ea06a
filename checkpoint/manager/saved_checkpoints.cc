#include "checkpoint/manager/saved_checkpoints.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/damage.h"
#include "checkpoint/scan/verify.h"

namespace tessera::ckpt {
namespace {

constexpr int kRereads = 2;

absl::StatusOr<Manifest> ReadIntactOnce(Storage& storage, std::string_view directory) {
  TESSERA_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(storage, directory));
  TESSERA_ASSIGN_OR_RETURN(const VerifyReport report,
                           VerifyFiles(storage, directory, manifest, {.contents = false}));
  if (report.damage.empty()) return manifest;
  const size_t more = report.damage.size() - 1;
  return absl::DataLossError(absl::StrCat(storage.Describe(directory), ": ",
                                          ToString(report.damage.front()),
                                          more > 0 ? absl::StrCat(" (and ", more, " more)") : ""));
}

// Returns whether the directory of a rolling checkpoint, or its slot, is a symbolic link.
bool IsLinked(Storage& storage, std::string_view directory) {
  return storage.IsLink(directory) || storage.IsLink(FolderOf(directory));
}

// Returns the step directories of a slot, and of the folders of attempts in it.
absl::StatusOr<std::vector<CheckpointInfo>> ListSlot(Storage& storage, std::string_view slot) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> all, ListStepDirectories(storage, slot));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolders(storage, slot));
  for (const std::string& name : names) {
    if (!IsRollingAttempt(name)) continue;
    TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> attempt,
                             ListStepDirectories(storage, JoinPath(slot, name)));
    std::ranges::move(attempt, std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &CheckpointInfo::step);
  return all;
}

}  // namespace

absl::StatusOr<std::vector<CheckpointInfo>> ListForResume(Storage& storage,
                                                          std::vector<CheckpointInfo>* unreadable) {
  std::vector<CheckpointInfo> all;
  const auto add = [&](const std::vector<CheckpointInfo>& directories, bool rolling) {
    for (const CheckpointInfo& dir : directories) {
      std::vector<CheckpointInfo>* const list = dir.committed.ok() ? &all : unreadable;
      if (list == nullptr || (dir.committed.ok() && !*dir.committed)) continue;
      list->push_back(dir);
      list->back().rolling = rolling;
    }
  };
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> permanent,
                           ListStepDirectories(storage, ""));
  add(permanent, /*rolling=*/false);
  for (const std::string_view slot : kRollingSlots) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> rolling, ListSlot(storage, slot));
    add(rolling, /*rolling=*/true);
  }
  std::ranges::stable_sort(all, [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return std::tuple(-a.step, a.rolling) < std::tuple(-b.step, b.rolling);
  });
  return all;
}

absl::Status CheckLaterSteps(Storage& storage, int64_t step, std::string_view advice) {
  std::vector<CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> saved,
                           ListForResume(storage, &unreadable));
  for (const CheckpointInfo& dir : unreadable) {
    if (dir.step <= step || dir.rolling) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        storage.Describe(dir.directory), ", of a later step than this run starts from (", step,
        "), cannot be read and may be a checkpoint: make it readable or move it away (",
        WithoutDirectory(storage, dir.directory, dir.committed.status().message()), ")"));
  }
  std::vector<int64_t> later;
  for (const CheckpointInfo& checkpoint : saved) {
    if (checkpoint.step > step) later.insert(later.begin(), checkpoint.step);
  }
  if (later.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      storage.Describe(""), " holds checkpoints of later steps (", absl::StrJoin(later, ", "),
      ") than this run starts from (", step, "); ", std::string(advice)));
}

bool IsHealthy(const Manifest& manifest) {
  const TrainerState& trainer = manifest.trainer();
  return !trainer.has_health() ||
         (trainer.health().state_is_finite() && trainer.health().loss_is_sane());
}

absl::StatusOr<Manifest> ReadIntact(Storage& storage, std::string_view directory) {
  absl::StatusOr<Manifest> manifest = ReadIntactOnce(storage, directory);
  for (int again = 0; again < kRereads && MayBeDamage(manifest.status()); ++again) {
    manifest = ReadIntactOnce(storage, directory);
  }
  return manifest;
}

std::string WithoutDirectory(const Storage& storage, std::string_view directory,
                             absl::string_view message) {
  const std::string name = storage.Describe(directory);
  return absl::StrReplaceAll(message,
                             {{absl::StrCat(name, "/"), ""}, {absl::StrCat(name, ": "), ""}});
}

absl::Status NoSuchCheckpoint(const Storage& storage, std::vector<CheckpointInfo> saved) {
  std::ranges::sort(saved, {}, &CheckpointInfo::step);
  const auto add_step = [](std::string* text, const CheckpointInfo& checkpoint) {
    absl::StrAppend(text, checkpoint.step);
  };
  const std::string steps =
      saved.empty() ? "there is none"
                    : absl::StrCat("there are steps ", absl::StrJoin(saved, ", ", add_step));
  return absl::NotFoundError(
      absl::StrCat("no such checkpoint in ", storage.Describe(""), "; ", steps));
}

absl::StatusOr<std::vector<std::string>> AbandonLater(Storage& storage, int64_t step) {
  std::vector<CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> saved,
                           ListForResume(storage, &unreadable));
  // It may hold a checkpoint.
  for (const CheckpointInfo& dir : unreadable) {
    if (dir.step > step) return dir.committed.status();
  }
  std::vector<std::string> moved_to;
  const std::unique_ptr<Removal> removal = Removal::In(storage);
  for (const CheckpointInfo& checkpoint : saved) {
    if (checkpoint.step <= step) break;
    TESSERA_ASSIGN_OR_RETURN(std::string to,
                             removal->Quarantine(checkpoint.directory, "abandoned"));
    moved_to.push_back(std::move(to));
  }
  return moved_to;
}

absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage) {
  RollingSteps steps;
  std::array<std::vector<CheckpointInfo>, kRollingSlots.size()> directories;
  for (size_t slot = 0; slot < kRollingSlots.size(); ++slot) {
    TESSERA_ASSIGN_OR_RETURN(directories[slot], ListSlot(storage, kRollingSlots[slot]));
    for (const CheckpointInfo& dir : directories[slot]) {
      TESSERA_RETURN_IF_ERROR(dir.committed.status());
      if (*dir.committed) steps[slot] = dir.step;  // ascending
    }
  }
  int chosen = ChooseRollingSlot(steps);
  // Nothing is deleted through a link.
  if (storage.IsLink(kRollingSlots[chosen])) chosen = 1 - chosen;
  const std::optional<int64_t> newest = std::max(steps[0], steps[1]);
  const std::unique_ptr<Removal> removal = Removal::In(storage);
  for (const CheckpointInfo& dir : directories[chosen]) {
    if (IsLinked(storage, dir.directory)) continue;
    // Another attempt may still commit it, and be the only one to have a checkpoint.
    if (!removal->frees_names() && !*dir.committed && dir.step > newest) continue;
    TESSERA_RETURN_IF_ERROR(RemoveUnlessRead(storage, *removal, dir).status());
  }
  std::string slot(kRollingSlots[chosen]);
  return removal->frees_names() ? slot : JoinPath(slot, MakeRollingAttempt());
}

Retention::Retention(Storage& storage, const RetentionOptions& options)
    : storage_(storage), removal_(Removal::In(storage)), options_(options) {}

absl::Status Retention::Apply(absl::Time now, std::optional<int64_t> saved_step) {
  if (!options_.deletes()) return absl::OkStatus();
  absl::Status first_error = SettleDiscarded(storage_, "");
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> directories,
                           ListStepDirectories(storage_, ""));
  std::erase_if(directories, [&](const CheckpointInfo& dir) {
    return !dir.committed.ok() || storage_.IsLink(dir.directory);
  });
  std::vector<RetentionCandidate> candidates;
  std::vector<const CheckpointInfo*> committed;
  std::vector<bool> unknown;
  for (const CheckpointInfo& dir : directories) {
    if (!*dir.committed) continue;
    const Described described = DescribeOnce(dir);
    first_error.Update(described.unknown);
    unknown.push_back(!described.unknown.ok());
    candidates.push_back(described.candidate);
    committed.push_back(&dir);
  }
  if (committed.empty()) return first_error;

  std::vector<const CheckpointInfo*> deleted;
  for (const size_t i : ChooseToDelete(options_, candidates, now)) {
    if (!unknown[i] && committed[i]->step != saved_step) deleted.push_back(committed[i]);
  }
  for (const CheckpointInfo& dir : directories) {
    if (!*dir.committed && dir.step < committed.back()->step) deleted.push_back(&dir);
  }
  for (const CheckpointInfo* dir : deleted) {
    const absl::StatusOr<bool> removed = RemoveUnlessRead(storage_, *removal_, *dir);
    first_error.Update(removed.status());
    if (removed.ok() && *removed) described_.erase(dir->directory);
  }
  if (!deleted.empty()) first_error.Update(storage_.SyncDirectory(""));
  return first_error;
}

absl::StatusOr<std::vector<std::string>> Retention::MakeRoom(const ComingSave& coming,
                                                             absl::Time now) {
  const auto lacking = [&]() -> uint64_t {
    const absl::StatusOr<uint64_t> free = storage_.FreeBytes();
    return free.ok() && *free < coming.needed_bytes ? coming.needed_bytes - *free : 0;
  };
  std::vector<std::string> deleted;
  if (lacking() == 0) return deleted;
  TESSERA_RETURN_IF_ERROR(SettleDiscarded(storage_, ""));
  TESSERA_ASSIGN_OR_RETURN(const Droppable droppable, FindDroppable(coming, now));
  if (droppable.bytes < lacking()) return deleted;
  for (const CheckpointInfo& checkpoint : droppable.checkpoints) {
    if (lacking() == 0) break;
    TESSERA_ASSIGN_OR_RETURN(const bool removed, RemoveUnlessRead(storage_, *removal_, checkpoint));
    if (!removed) continue;
    described_.erase(checkpoint.directory);
    deleted.push_back(checkpoint.directory);
  }
  return deleted;
}

absl::StatusOr<Retention::Droppable> Retention::FindDroppable(const ComingSave& coming,
                                                              absl::Time now) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> saved, ListForResume(storage_));
  std::ranges::reverse(saved);  // by ascending step
  std::vector<RetentionCandidate> candidates;
  std::vector<std::pair<const CheckpointInfo*, uint64_t>> found;
  for (const CheckpointInfo& checkpoint : saved) {
    if (checkpoint.rolling ? IsLinked(storage_, checkpoint.directory)
                           : storage_.IsLink(checkpoint.directory)) {
      continue;
    }
    const Described described =
        checkpoint.rolling ? Describe(checkpoint) : DescribeOnce(checkpoint);
    if (!described.unknown.ok() || (checkpoint.rolling && !described.intact)) continue;
    candidates.push_back(described.candidate);
    found.emplace_back(&checkpoint, described.bytes);
  }
  Droppable droppable;
  const RetentionCandidate next = {.step = coming.step, .rolling = coming.rolling, .good = false};
  for (const size_t i : ChooseToMakeRoom(options_, candidates, next, now)) {
    droppable.checkpoints.push_back(*found[i].first);
    droppable.bytes += found[i].second;
  }
  return droppable;
}

Retention::Described Retention::DescribeOnce(const CheckpointInfo& checkpoint) {
  const auto known = described_.find(checkpoint.directory);
  if (known != described_.end()) return known->second;
  Described described = Describe(checkpoint);
  if (described.unknown.ok()) described_[checkpoint.directory] = described;
  return described;
}

Retention::Described Retention::Describe(const CheckpointInfo& checkpoint) {
  const absl::StatusOr<Manifest> manifest = ReadIntact(storage_, checkpoint.directory);
  Described described = {
      .candidate = {.step = checkpoint.step, .rolling = checkpoint.rolling, .good = false},
      .intact = manifest.ok()};
  if (!manifest.ok() && !MayBeDamage(manifest.status())) described.unknown = manifest.status();
  if (!manifest.ok()) return described;
  const TrainerState& trainer = manifest->trainer();
  RetentionCandidate& candidate = described.candidate;
  candidate.saved_at = absl::FromUnixMillis(manifest->producer().created_unix_ms());
  candidate.good = IsHealthy(*manifest);
  if (trainer.health().has_validation_loss()) {
    candidate.validation_loss = trainer.health().validation_loss();
  }
  for (const DataFile& file : manifest->files()) described.bytes += file.size_bytes();
  return described;
}

}  // namespace tessera::ckpt
