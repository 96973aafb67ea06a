#include "trainer/state/checkpoints.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/join_first.h"
#include "base/status_macros.h"
#include "checkpoint/manifest.h"
#include "trainer/config/load_content.h"
#include "trainer/state/saved_run.pb.h"

namespace tessera {
namespace {

// The index of the requested checkpoint in `saved`.
absl::StatusOr<size_t> Choose(ckpt::Storage& storage, const CheckpointConfig& config,
                              const std::vector<ckpt::CheckpointInfo>& saved) {
  if (!config.has_ckpt_step()) return saved.size() - 1;
  std::vector<int64_t> steps;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (saved[i].step == config.ckpt_step()) return i;
    steps.push_back(saved[i].step);
  }
  return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(),
                                          ": no such checkpoint in ", storage.Describe(""),
                                          "; there are steps ", absl::StrJoin(steps, ", ")));
}

// A checkpoint in place of the folder that contains it would look like a folder without any.
absl::Status CheckSaveFolder(const std::string& folder, ckpt::Storage& storage) {
  if (absl::IsNotFound(ckpt::ReadManifest(storage, "").status())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("save=", folder, " is a single checkpoint: expected the folder above it"));
}

// `load` is itself a checkpoint, under whatever name.
absl::StatusOr<SavedRun> TakeSingleCheckpoint(std::unique_ptr<ckpt::Storage> storage,
                                              absl::StatusOr<ckpt::Manifest> manifest,
                                              const CheckpointConfig& config) {
  TESSERA_RETURN_IF_ERROR(manifest.status());
  if (config.has_ckpt_step() && config.ckpt_step() != manifest->trainer().step()) {
    return absl::NotFoundError(absl::StrCat("ckpt_step ", config.ckpt_step(), ": ", config.load(),
                                            " is a single checkpoint, of step ",
                                            manifest->trainer().step()));
  }
  return SavedRun{.storage = std::move(storage), .manifest = *std::move(manifest)};
}

absl::StatusOr<std::optional<SavedRun>> FindOnThisRank(const CheckpointConfig& config) {
  absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage = ckpt::OpenStorage(config.load());
  // A request for weights excludes a fresh start.
  const bool required = config.exit_on_missing_checkpoint() || config.has_ckpt_step() ||
                        !LoadContentOf(config).scheduler;
  if (absl::IsNotFound(storage.status()) && !required) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(storage.status());
  absl::StatusOr<ckpt::Manifest> single = ckpt::ReadManifest(**storage, "");
  if (!absl::IsNotFound(single.status())) {
    return TakeSingleCheckpoint(*std::move(storage), std::move(single), config);
  }
  std::vector<ckpt::UnreadableCheckpoint> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> saved,
                           ckpt::List(**storage, "", &unreadable));
  for (const ckpt::UnreadableCheckpoint& checkpoint : unreadable) {
    // It was requested, or it may be the only one: a fresh start would be wrong.
    const bool needed =
        config.has_ckpt_step() ? checkpoint.step == config.ckpt_step() : saved.empty();
    if (needed) return checkpoint.status;
  }
  if (saved.empty()) {
    if (!required) return std::nullopt;
    return absl::NotFoundError(absl::StrCat("load: no checkpoint in ", config.load()));
  }
  SavedRun run{.storage = *std::move(storage)};
  TESSERA_ASSIGN_OR_RETURN(const size_t chosen, Choose(*run.storage, config, saved));
  run.directory = saved[chosen].directory;
  if (chosen > 0) run.older_step = saved[chosen - 1].step;
  absl::StatusOr<ckpt::Manifest> manifest = ckpt::ReadManifest(*run.storage, run.directory);
  if (!manifest.ok()) return WithOlderStep(manifest.status(), run);
  run.manifest = *std::move(manifest);
  return run;
}

// Rank 0's message to the others about the checkpoint that it has found.
std::string Encode(const std::optional<SavedRun>& run) {
  SavedRunMessage message;
  message.set_found(run.has_value());
  if (run.has_value()) {
    message.set_directory(run->directory);
    if (run->older_step.has_value()) message.set_older_step(*run->older_step);
    message.set_manifest(run->manifest.SerializeAsString());
  }
  return message.SerializeAsString();
}

absl::StatusOr<std::optional<SavedRun>> Decode(const std::string& bytes,
                                               const CheckpointConfig& config) {
  SavedRunMessage message;
  SavedRun run;
  if (!message.ParseFromString(bytes) || !run.manifest.ParseFromString(message.manifest())) {
    return absl::InternalError("rank 0's message about the checkpoint does not parse");
  }
  if (!message.found()) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(run.storage, ckpt::OpenStorage(config.load()));
  run.directory = message.directory();
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
absl::StatusOr<std::unique_ptr<FolderLock>> ReserveOnThisRank(const CheckpointConfig& config,
                                                              int64_t step) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Storage> storage,
                           ckpt::OpenStorage(config.save(), {.create_root = true}));
  TESSERA_RETURN_IF_ERROR(CheckSaveFolder(config.save(), *storage));
  std::unique_ptr<FolderLock> lock;
  if (const std::optional<std::string> folder = storage->LocalPath(""); folder.has_value()) {
    TESSERA_RETURN_IF_ERROR(CheckWritable(*folder));
    TESSERA_ASSIGN_OR_RETURN(lock, FolderLock::Acquire(*folder));
  }
  std::vector<ckpt::UnreadableCheckpoint> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> saved,
                           ckpt::List(*storage, "", &unreadable));
  for (const ckpt::UnreadableCheckpoint& checkpoint : unreadable) {
    if (checkpoint.step <= step) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "save: ", config.save(), "/", checkpoint.directory, ", of a later step than this run ",
        "starts from (", step, "), cannot be read and may be a checkpoint: make it readable or ",
        "move it away (", checkpoint.status.message(), ")"));
  }
  std::vector<int64_t> later;
  for (const ckpt::CheckpointInfo& info : saved) {
    if (info.step > step) later.push_back(info.step);
  }
  if (later.empty()) return lock;
  std::string resume = absl::StrCat("resume with --load=", config.save());
  if (config.load() == config.save() && !LoadContentOf(config).scheduler) {
    resume = "resume with the step, which --finetune and --load-content leave out";
  } else if (config.load() == config.save() && config.has_ckpt_step()) {
    resume = "resume from the newest, without --ckpt-step";
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "save: ", config.save(), " holds checkpoints of later steps (", absl::StrJoin(later, ", "),
      ") than this run starts from (", step, "); ", resume, ", or save to another folder"));
}

}  // namespace

absl::Status WithOlderStep(const absl::Status& status, const SavedRun& saved) {
  if (!saved.older_step.has_value()) return status;
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; --ckpt-step=", *saved.older_step,
                                   " resumes from the checkpoint before"));
}

absl::StatusOr<std::optional<SavedRun>> FindSavedRun(const CheckpointConfig& config,
                                                     const RankGroup& group) {
  if (config.load().empty()) return std::nullopt;
  if (group.ranks.rank() != 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::string found, group.ranks.Broadcast("", group.deadline));
    return Decode(found, config);
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<SavedRun> run, FindOnThisRank(config));
  TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast(Encode(run), group.deadline).status());
  return run;
}

absl::StatusOr<std::string> DescribePassedOver(const CheckpointConfig& config, int64_t step) {
  const absl::StatusOr<std::unique_ptr<ckpt::Storage>> storage = ckpt::OpenStorage(config.load());
  if (absl::IsNotFound(storage.status())) return "";
  TESSERA_RETURN_IF_ERROR(storage.status());
  std::vector<std::string> sentences;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ckpt::CheckpointInfo> begun,
                           ckpt::ListUncommitted(**storage, ""));
  std::vector<std::string> later;
  for (const ckpt::CheckpointInfo& info : begun) {
    if (info.step > step) later.push_back(info.directory);
  }
  if (!later.empty()) {
    sentences.push_back(absl::StrCat(JoinFirst(later, ", "),
                                     later.size() == 1 ? ", a save that was" : ", saves that were",
                                     " never completed (no manifest.pb)"));
  }
  std::vector<ckpt::UnreadableCheckpoint> unreadable;
  TESSERA_RETURN_IF_ERROR(ckpt::List(**storage, "", &unreadable).status());
  std::vector<std::string> reasons;
  for (const ckpt::UnreadableCheckpoint& checkpoint : unreadable) {
    reasons.push_back(absl::StrCat(checkpoint.directory, ", which cannot be read (",
                                   checkpoint.status.message(), ")"));
  }
  if (!reasons.empty()) sentences.push_back(JoinFirst(reasons, "; "));
  if (sentences.empty()) return "";
  return absl::StrCat("skipped in ", config.load(), ": ", absl::StrJoin(sentences, "; "));
}

absl::StatusOr<std::unique_ptr<FolderLock>> ReserveSaveFolder(const CheckpointConfig& config,
                                                              int64_t step,
                                                              const RankGroup& group) {
  if (config.save().empty()) return nullptr;
  std::unique_ptr<FolderLock> lock;
  if (group.ranks.rank() == 0) {
    TESSERA_ASSIGN_OR_RETURN(lock, ReserveOnThisRank(config, step));
  }
  // The folder exists and is locked before any rank continues.
  TESSERA_RETURN_IF_ERROR(group.ranks.Broadcast("", group.deadline).status());
  return lock;
}

}  // namespace tessera
