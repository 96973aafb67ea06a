#include "checkpoint/manager/save_housekeeping.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/no_memory.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/manager/saved_checkpoints.h"
#include "storage/tiered/staging_folder.h"

namespace tessera::ckpt {
namespace {

void AddNote(SaveReport& report, std::string_view note) {
  absl::StrAppend(&report.note, report.note.empty() ? "" : "; ", std::string(note));
}

}  // namespace

SaveHooks SaveHousekeeping::Hooks() {
  return {.choose_root = [this](const PlannedSave& planned) { return ChooseRoot(planned); },
          .may_commit = [this] { return ConfirmFolder(lock_); },
          .plan_cache = &plan_cache_,
          .on_committed = [this](SaveReport& report) { AfterCommit(report); }};
}

void SaveHousekeeping::AfterCommit(SaveReport& report) {
  if (is_rank_0_ && options_.on_commit) options_.on_commit(report);
  // The other ranks wait for no answer of this one.
  CatchNoMemory("delete older checkpoints", [&] { return CleanUp(report); }).IgnoreError();
}

absl::StatusOr<std::string> SaveHousekeeping::ChooseRoot(const PlannedSave& planned) {
  TESSERA_RETURN_IF_ERROR(ConfirmFolder(lock_));
  std::string root;
  if (planned.rolling) {
    TESSERA_ASSIGN_OR_RETURN(root, EmptyRollingSlot(storage_));
  }
  room_note_.clear();
  // The manifest and the file system's own records are small beside the data.
  const uint64_t needed_bytes = planned.data_bytes + planned.data_bytes / 64 +
                                std::min<uint64_t>(planned.data_bytes, 64 << 10);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> deleted,
      retention_.MakeRoom({planned.step, planned.rolling, needed_bytes}, absl::Now()));
  if (!deleted.empty()) {
    room_note_ = absl::StrCat("the disk is full: ", absl::StrJoin(deleted, " and "),
                              " made room for step ", planned.step);
  }
  return root;
}

absl::Status SaveHousekeeping::CleanUp(SaveReport& report) {
  const bool permanent = report.directory.find('/') == report.directory.npos;
  if (is_rank_0_ && permanent) {
    const std::optional<int64_t> step = ParseStepDirectoryName(report.directory);
    absl::Status pruned = ConfirmFolder(lock_);
    if (pruned.ok()) pruned = retention_.Apply(absl::Now(), step);
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

}  // namespace tessera::ckpt
