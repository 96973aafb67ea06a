#include "checkpoint/manager/saved_checkpoints.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
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
#include "checkpoint/internal/damage.h"
#include "checkpoint/scan/verify.h"

namespace tessera::ckpt {
namespace {

constexpr int kRereads = 2;
constexpr int kThreads = 64;  // while they look at thousands of files, other ranks wait

absl::StatusOr<Manifest> ReadIntactOnce(Storage& storage, std::string_view directory) {
  TESSERA_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(storage, directory));
  TESSERA_ASSIGN_OR_RETURN(
      const VerifyReport report,
      VerifyFiles(storage, directory, manifest, {.contents = false, .io_threads = kThreads}));
  if (report.damage.empty()) return manifest;
  const size_t more = report.damage.size() - 1;
  return absl::DataLossError(absl::StrCat(storage.Describe(directory), ": ",
                                          ToString(report.damage.front()),
                                          more > 0 ? absl::StrCat(" (and ", more, " more)") : ""));
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

// Returns the directory of the first checkpoint that is intact and healthy, or nothing. A rolling
// one that cannot be read, for another reason than damage, is taken as good.
std::string FindGood(Storage& storage, std::span<const CheckpointInfo> newest_first) {
  for (const CheckpointInfo& checkpoint : newest_first) {
    const absl::StatusOr<Manifest> manifest = ReadIntact(storage, checkpoint.directory);
    if (manifest.ok() && IsHealthy(*manifest)) return checkpoint.directory;
    const bool is_known = manifest.ok() || MayBeDamage(manifest.status());
    if (checkpoint.rolling && !is_known) return checkpoint.directory;
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<CheckpointInfo>> ListForResume(Storage& storage,
                                                          std::vector<CheckpointInfo>* unreadable) {
  std::vector<CheckpointInfo> all;
  const auto add = [&](const std::vector<CheckpointInfo>& directories, bool rolling) {
    for (const CheckpointInfo& dir : directories) {
      std::vector<CheckpointInfo>* const list = dir.readable.ok() ? &all : unreadable;
      if (list == nullptr || (dir.readable.ok() && !dir.committed)) continue;
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
        WithoutDirectory(storage, dir.directory, dir.readable.message()), ")"));
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

SkippedCheckpoint Diverged(const CheckpointInfo& checkpoint, const Manifest& manifest) {
  const char* const why = manifest.trainer().health().state_is_finite()
                              ? "the loss was not plausible"
                              : "the state is not finite";
  return {checkpoint.directory, "", std::string(kDiverged),
          absl::FailedPreconditionError(
              absl::StrCat("the run had diverged at step ", manifest.trainer().step(), ": ", why))};
}

FoundCheckpoint ChooseToRead(Storage& storage, std::span<const CheckpointInfo> newest_first) {
  std::vector<std::string> notes;
  for (const CheckpointInfo& checkpoint : newest_first) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(storage, checkpoint.directory);
    if (!manifest.ok() || IsHealthy(*manifest)) return {checkpoint, std::move(notes)};
    notes.push_back(Describe(storage, Diverged(checkpoint, *manifest)));
  }
  return {
      newest_first.front(),
      {absl::StrCat(storage.Describe(""),
                    " holds only checkpoints of a run that had diverged: ", "the newest is read")}};
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
  // A directory that cannot be listed may hold a checkpoint.
  for (const CheckpointInfo& dir : unreadable) {
    if (dir.step > step) return dir.readable;
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

bool IsLinked(Storage& storage, std::string_view directory) {
  return storage.IsLink(directory) || storage.IsLink(FolderOf(directory));
}

absl::StatusOr<std::string> EmptyRollingSlot(Storage& storage, std::string_view known_good,
                                             absl::Status* undeleted) {
  RollingSteps steps;
  std::array<CheckpointInfo, kRollingSlots.size()> newest_of;
  std::array<std::vector<CheckpointInfo>, kRollingSlots.size()> directories;
  for (size_t slot = 0; slot < kRollingSlots.size(); ++slot) {
    TESSERA_ASSIGN_OR_RETURN(directories[slot], ListSlot(storage, kRollingSlots[slot]));
    for (const CheckpointInfo& dir : directories[slot]) {
      TESSERA_RETURN_IF_ERROR(dir.readable);
      if (!dir.committed) continue;
      steps[slot] = dir.step;  // ascending
      newest_of[slot] = dir;
      newest_of[slot].rolling = true;
    }
  }
  int chosen = ChooseRollingSlot(steps);
  std::string good;
  const bool is_known = newest_of[1 - chosen].directory == known_good ||
                        ParseStepDirectoryName(known_good) >= steps[1 - chosen];
  if (steps[chosen].has_value() && !is_known) {
    good = FindGood(storage, {&newest_of[1 - chosen], 1});
    if (good.empty()) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, ListForResume(storage));
      good = FindGood(storage, all);
    }
    if (good.starts_with(kRollingSlots[chosen])) chosen = 1 - chosen;
  }
  // Nothing is deleted through a link.
  if (storage.IsLink(kRollingSlots[chosen])) chosen = 1 - chosen;
  const std::optional<int64_t> newest = std::max(steps[0], steps[1]);
  const std::unique_ptr<Removal> removal = Removal::In(storage);
  for (const CheckpointInfo& dir : directories[chosen]) {
    if (dir.directory == good || IsLinked(storage, dir.directory)) continue;
    // Another attempt may still commit it, and be the only one to have a checkpoint.
    if (!removal->frees_names() && !dir.committed && dir.step > newest) continue;
    const absl::Status removed = RemoveUnlessRead(storage, *removal, dir).status();
    if (undeleted != nullptr) undeleted->Update(removed);
  }
  std::string slot(kRollingSlots[chosen]);
  return removal->frees_names() ? slot : JoinPath(slot, RandomHex(8));
}

bool IsRollingAttempt(std::string_view name) {
  return name.size() == 8 && name.find_first_not_of("0123456789abcdef") == name.npos;
}

}  // namespace tessera::ckpt
