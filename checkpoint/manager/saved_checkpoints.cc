#include "checkpoint/manager/saved_checkpoints.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/directory/file_map.h"
#include "checkpoint/directory/read_lock.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/manager/rolling.h"
#include "checkpoint/verify/verify.h"

namespace tessera::ckpt {
namespace {

// False, with nothing done, while the checkpoint is being read.
absl::StatusOr<bool> RemoveUnlessRead(Storage& storage, const StepDirectory& dir) {
  const RemovalLock lock(storage, dir.path);
  if (lock.refused()) return false;
  TESSERA_RETURN_IF_ERROR(RemoveStepDirectory(storage, dir));
  return true;
}

absl::StatusOr<std::vector<SavedCheckpoint>> ListCommitted(Storage& storage, std::string_view root,
                                                           bool rolling,
                                                           std::vector<StepDirectory>* unreadable) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<StepDirectory> directories,
                           ListStepDirectories(storage, root));
  std::vector<SavedCheckpoint> committed;
  for (const StepDirectory& dir : directories) {
    if (dir.committed.ok() && *dir.committed) committed.push_back({dir.step, dir.path, rolling});
    if (!dir.committed.ok() && unreadable != nullptr) unreadable->push_back(dir);
  }
  return committed;
}

// "a/b" and "c" of "a/b/c".
std::pair<std::string, std::string> SplitPath(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return {"", std::string(path)};
  return {std::string(path.substr(0, slash)), std::string(path.substr(slash + 1))};
}

// Whether the directory of a rolling checkpoint, or its slot, is a symbolic link.
bool IsLinked(Storage& storage, std::string_view directory) {
  return storage.IsLink(directory) || storage.IsLink(SplitPath(directory).first);
}

// "x.damaged", or the first of "x.damaged-2", "x.damaged-3" ... that is not taken.
std::string FreeName(const std::set<std::string>& taken, std::string_view name,
                     std::string_view word) {
  const std::string first = absl::StrCat(std::string(name), ".", std::string(word));
  std::string candidate = first;
  for (int number = 2; taken.contains(candidate) || taken.contains(candidate + "/"); ++number) {
    candidate = absl::StrCat(first, "-", number);
  }
  return candidate;
}

// In a storage that cannot rename: the manifest's contents get another name. A death in between
// leaves both.
absl::StatusOr<std::string> SetManifestAside(Storage& storage, std::string_view directory,
                                             std::string_view word) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> files, storage.List(directory));
  const std::string from = JoinPath(directory, kManifestFileName);
  const std::string to =
      JoinPath(directory, FreeName({files.begin(), files.end()}, kManifestFileName, word));
  TESSERA_ASSIGN_OR_RETURN(const std::string contents, ReadAll(storage, from, kMaxManifestBytes));
  TESSERA_RETURN_IF_ERROR(storage.Publish(to, contents, nullptr));
  TESSERA_RETURN_IF_ERROR(storage.Delete(from));
  TESSERA_RETURN_IF_ERROR(storage.SyncDirectory(directory));
  return to;
}

}  // namespace

absl::StatusOr<std::vector<SavedCheckpoint>> ListForResume(Storage& storage, std::string_view root,
                                                           std::vector<StepDirectory>* unreadable) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<SavedCheckpoint> all,
                           ListCommitted(storage, root, /*rolling=*/false, unreadable));
  for (const std::string_view slot : kRollingSlots) {
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<SavedCheckpoint> rolling,
        ListCommitted(storage, JoinPath(root, slot), /*rolling=*/true, unreadable));
    std::ranges::move(rolling, std::back_inserter(all));
  }
  std::ranges::stable_sort(all, [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
    return std::tuple(-a.step, a.rolling) < std::tuple(-b.step, b.rolling);
  });
  return all;
}

bool IsHealthy(const Manifest& manifest) {
  const TrainerState& trainer = manifest.trainer();
  return !trainer.has_health() ||
         (trainer.health().state_is_finite() && trainer.health().loss_is_sane());
}

absl::StatusOr<Manifest> ReadIntact(Storage& storage, std::string_view directory) {
  TESSERA_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(storage, directory));
  TESSERA_ASSIGN_OR_RETURN(const VerifyReport report,
                           VerifyCheckpoint(storage, directory, {.contents = false}));
  if (report.damage.empty()) return manifest;
  const size_t more = report.damage.size() - 1;
  return absl::DataLossError(absl::StrCat(storage.Describe(directory), ": ",
                                          ToString(report.damage.front()),
                                          more > 0 ? absl::StrCat(" (and ", more, " more)") : ""));
}

absl::StatusOr<std::string> SetAside(Storage& storage, std::string_view directory,
                                     std::string_view word) {
  const auto [parent, name] = SplitPath(directory);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> siblings, storage.List(parent));
  std::string to = JoinPath(parent, FreeName({siblings.begin(), siblings.end()}, name, word));
  const absl::Status renamed = storage.Rename(directory, to);
  if (absl::IsUnimplemented(renamed)) return SetManifestAside(storage, directory, word);
  TESSERA_RETURN_IF_ERROR(renamed);
  TESSERA_RETURN_IF_ERROR(storage.SyncDirectory(parent));
  return to;
}

absl::StatusOr<std::vector<std::string>> AbandonLater(Storage& storage, std::string_view root,
                                                      int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SavedCheckpoint> saved, ListForResume(storage, root));
  std::vector<std::string> moved_to;
  for (const SavedCheckpoint& checkpoint : saved) {
    if (checkpoint.step <= step) break;
    TESSERA_ASSIGN_OR_RETURN(std::string to, SetAside(storage, checkpoint.directory, "abandoned"));
    moved_to.push_back(std::move(to));
  }
  return moved_to;
}

absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage, std::string_view root) {
  RollingSteps steps;
  std::array<std::vector<StepDirectory>, kRollingSlots.size()> directories;
  for (size_t slot = 0; slot < kRollingSlots.size(); ++slot) {
    TESSERA_ASSIGN_OR_RETURN(directories[slot],
                             ListStepDirectories(storage, JoinPath(root, kRollingSlots[slot])));
    for (const StepDirectory& dir : directories[slot]) {
      TESSERA_RETURN_IF_ERROR(dir.committed.status());
      if (*dir.committed) steps[slot] = dir.step;  // ascending
    }
  }
  int chosen = ChooseRollingSlot(steps);
  // Nothing is deleted through a link.
  if (storage.IsLink(JoinPath(root, kRollingSlots[chosen]))) chosen = 1 - chosen;
  for (const StepDirectory& dir : directories[chosen]) {
    if (IsLinked(storage, dir.path)) continue;
    TESSERA_RETURN_IF_ERROR(RemoveUnlessRead(storage, dir).status());
  }
  return JoinPath(root, kRollingSlots[chosen]);
}

Retention::Retention(Storage& storage, std::string_view root, const RetentionOptions& options)
    : storage_(storage), root_(root), options_(options) {}

absl::Status Retention::Apply(absl::Time now) {
  if (!options_.deletes()) return absl::OkStatus();
  absl::Status first_error = SettleDiscarded(storage_, root_);
  TESSERA_ASSIGN_OR_RETURN(std::vector<StepDirectory> directories,
                           ListStepDirectories(storage_, root_));
  std::erase_if(directories, [&](const StepDirectory& dir) {
    return !dir.committed.ok() || storage_.IsLink(dir.path);
  });
  std::vector<RetentionCandidate> candidates;
  std::vector<const StepDirectory*> committed;
  for (const StepDirectory& dir : directories) {
    if (!*dir.committed) continue;
    candidates.push_back(DescribeOnce({dir.step, dir.path}).candidate);
    committed.push_back(&dir);
  }
  if (committed.empty()) return first_error;

  std::vector<const StepDirectory*> deleted;
  for (const size_t i : ChooseToDelete(options_, candidates, now)) deleted.push_back(committed[i]);
  for (const StepDirectory& dir : directories) {
    if (!*dir.committed && dir.step < committed.back()->step) deleted.push_back(&dir);
  }
  for (const StepDirectory* dir : deleted) {
    const absl::StatusOr<bool> removed = RemoveUnlessRead(storage_, *dir);
    first_error.Update(removed.status());
    if (removed.ok() && *removed) described_.erase(dir->path);
  }
  if (!deleted.empty()) first_error.Update(storage_.SyncDirectory(root_));
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
  TESSERA_RETURN_IF_ERROR(SettleDiscarded(storage_, root_));
  TESSERA_ASSIGN_OR_RETURN(const Droppable droppable, FindDroppable(coming, now));
  if (droppable.bytes < lacking()) return deleted;
  for (const SavedCheckpoint& checkpoint : droppable.checkpoints) {
    if (lacking() == 0) break;
    TESSERA_ASSIGN_OR_RETURN(
        const bool removed,
        RemoveUnlessRead(storage_, {checkpoint.step, checkpoint.directory, true}));
    if (!removed) continue;
    described_.erase(checkpoint.directory);
    deleted.push_back(checkpoint.directory);
  }
  return deleted;
}

absl::StatusOr<Retention::Droppable> Retention::FindDroppable(const ComingSave& coming,
                                                              absl::Time now) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<SavedCheckpoint> saved, ListForResume(storage_, root_));
  std::ranges::reverse(saved);  // by ascending step
  std::vector<RetentionCandidate> candidates;
  std::vector<std::pair<const SavedCheckpoint*, uint64_t>> found;
  for (const SavedCheckpoint& checkpoint : saved) {
    if (checkpoint.rolling ? IsLinked(storage_, checkpoint.directory)
                           : storage_.IsLink(checkpoint.directory)) {
      continue;
    }
    const Described described =
        checkpoint.rolling ? Describe(checkpoint) : DescribeOnce(checkpoint);
    if (checkpoint.rolling && !described.intact) continue;
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

const Retention::Described& Retention::DescribeOnce(const SavedCheckpoint& checkpoint) {
  const auto known = described_.find(checkpoint.directory);
  if (known != described_.end()) return known->second;
  return described_[checkpoint.directory] = Describe(checkpoint);
}

Retention::Described Retention::Describe(const SavedCheckpoint& checkpoint) {
  const absl::StatusOr<Manifest> manifest = ReadIntact(storage_, checkpoint.directory);
  Described described = {
      .candidate = {.step = checkpoint.step, .rolling = checkpoint.rolling, .good = false},
      .intact = manifest.ok()};
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
