#include "checkpoint/save/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/collective/agree.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "storage/checks.h"

namespace tessera::ckpt {

Coordinator::Coordinator(Storage& storage, const Manifest& metadata,
                         std::function<absl::StatusOr<std::string>(uint64_t)> choose_root,
                         bool overwrite, std::function<absl::Status()> may_commit)
    : storage_(storage),
      removal_(Removal::In(storage)),
      choose_root_(std::move(choose_root)),
      attempt_(RandomHex(8)),
      overwrite_(overwrite),
      may_commit_(std::move(may_commit)),
      metadata_(metadata) {}

absl::StatusOr<SaveTarget> Coordinator::Prepare(const PlannedManifest& planned) {
  manifest_ = metadata_;
  for (const auto& [name, bytes] : planned.merged) {
    (*manifest_.mutable_trainer()->mutable_extra())[name] = bytes;
  }
  *manifest_.mutable_tensors() = planned.layout.tensors();
  *manifest_.mutable_files() = planned.layout.files();
  for (DataFile& file : *manifest_.mutable_files()) {
    file.set_path(DataFileName(file.path(), attempt_));
  }
  TESSERA_RETURN_IF_ERROR(planned.is_new ? CheckPlan(manifest_) : ValidateMetadata(manifest_));
  TESSERA_ASSIGN_OR_RETURN(root_, choose_root_(BytesOfFiles(manifest_)));
  directory_ = JoinPath(root_, StepDirectoryName(metadata_.trainer().step()));
  TESSERA_RETURN_IF_ERROR(PrepareDirectory());
  return SaveTarget{.directory = directory_, .attempt = attempt_};
}

absl::StatusOr<uint64_t> Coordinator::Commit(const std::vector<std::string>& reports) {
  TESSERA_ASSIGN_OR_RETURN(const uint64_t bytes, TakeReports(reports));
  TESSERA_ASSIGN_OR_RETURN(const std::string encoded, EncodeManifest(manifest_));
  const std::string path = JoinPath(directory_, kManifestFileName);
  absl::Status may;
  const auto ready = [&] { return may = CheckMayCommit(); };
  const std::string version = replaced_.has_value() ? replaced_->version : "";
  const absl::Status published =
      storage_.Write(path, encoded, {.version = version, .ready = ready}).status();
  if (!may.ok()) return published;  // ready() refused: Write() has returned its error
  TESSERA_RETURN_IF_ERROR(SettleCommit(published, encoded));
  TESSERA_RETURN_IF_ERROR(TakeBackIfFilesAreGone(encoded));
  if (other_attempts_left_) {
    removal_->DeleteOtherAttempts(directory_, manifest_, names_at_commit_).IgnoreError();
  }
  return bytes;
}

absl::StatusOr<uint64_t> Coordinator::TakeReports(const std::vector<std::string>& reports) {
  uint64_t bytes = 0;
  for (size_t r = 0; r < reports.size(); ++r) {
    TESSERA_ASSIGN_OR_RETURN(const auto report, MessageFrom<WriteReport>(r, reports[r]));
    const auto unplanned = [&](const char* what) {
      return absl::InternalError(
          absl::StrCat("rank ", r, " sent a report of a ", what, " that is not in the plan"));
    };
    for (const FileReport& file : report.files()) {
      if (file.file_index() >= static_cast<uint32_t>(manifest_.files_size())) {
        return unplanned("file");
      }
      *manifest_.mutable_files(file.file_index())->mutable_chunk_crc32c() = file.chunk_crc32c();
    }
    for (const TensorReport& tensor : report.tensors()) {
      if (tensor.manifest_tensor() >= static_cast<uint32_t>(manifest_.tensors_size())) {
        return unplanned("tensor");
      }
      Digest& digest = *manifest_.mutable_tensors(tensor.manifest_tensor())->mutable_digest();
      LogicalDigest sum = FromProto(digest);
      sum += FromProto(tensor.digest());
      digest = ToProto(sum);
    }
    bytes += report.bytes();
    phases_.push_back({.planning = absl::Seconds(report.planning()),
                       .copying = absl::Seconds(report.copying()),
                       .writing = absl::Seconds(report.writing()),
                       .syncing = absl::Seconds(report.syncing()),
                       .duration = absl::Seconds(report.seconds())});
  }
  return bytes;
}

// Called immediately before each request that commits.
absl::Status Coordinator::CheckMayCommit() {
  if (may_be_committed_) {
    // The request is repeated: it may arrive a second time when the checkpoint is deleted again.
    TESSERA_RETURN_IF_ERROR(MarkAsFenced(storage_, directory_));
  } else {
    TESSERA_ASSIGN_OR_RETURN(names_at_commit_, CheckFilesAreThere());
  }
  if (may_commit_) TESSERA_RETURN_IF_ERROR(may_commit_());
  may_be_committed_ = true;
  return absl::OkStatus();
}

// Finds out whether the manifest was committed, given the storage's answer.
absl::Status Coordinator::SettleCommit(const absl::Status& published, const std::string& encoded) {
  if (!absl::IsAlreadyExists(published) && !absl::IsAborted(published)) return published;
  // The answer may be that to a repetition of a request that had succeeded.
  const absl::StatusOr<std::string> there =
      ReadAll(storage_, JoinPath(directory_, kManifestFileName), kMaxManifestBytes);
  if (there.ok() && *there == encoded) return storage_.SyncDirectory(directory_);
  if (!there.ok()) {
    return absl::UnavailableError(
        absl::StrCat("it is not known whether ", storage_.Describe(directory_),
                     " was committed: ", published.message(), "; ", there.status().message()));
  }
  may_be_committed_ = false;
  if (IsTombstone(*there)) {
    return absl::AbortedError(absl::StrCat("another run has discarded this save to ",
                                           storage_.Describe(directory_), " meanwhile"));
  }
  return absl::AlreadyExistsError(absl::StrCat("another run has committed ",
                                               storage_.Describe(directory_),
                                               " meanwhile; nothing of it was changed"));
}

// A deletion that does not follow the protocol can begin before the commit and end after it.
absl::Status Coordinator::TakeBackIfFilesAreGone(const std::string& encoded) {
  const absl::Status gone = CheckFilesAreThere().status();
  // They were there a moment ago.
  if (!absl::IsAborted(gone)) return absl::OkStatus();
  const absl::StatusOr<bool> taken_back = TakeBack(encoded);
  may_be_committed_ = !taken_back.value_or(false);
  if (!may_be_committed_) return gone;
  if (taken_back.ok()) {
    return absl::UnavailableError(absl::StrCat(
        gone.message(), "; it is not known whether it is committed: its manifest is gone, too"));
  }
  return absl::AbortedError(absl::StrCat(
      gone.message(), "; its manifest is still there: ", taken_back.status().message()));
}

// Takes back a manifest that was committed, and restores the one that it has replaced. Returns what
// Removal::TakeBack() returns.
absl::StatusOr<bool> Coordinator::TakeBack(const std::string& encoded) {
  if (!replaced_.has_value() || IsTombstone(replaced_->contents)) {
    return removal_->TakeBack(directory_, encoded);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<VersionedContents> there,
                           ReadInPlace(storage_, directory_));
  if (!there.has_value() || there->contents != encoded) return there.has_value();
  TESSERA_RETURN_IF_ERROR(storage_
                              .Write(JoinPath(directory_, kManifestFileName), replaced_->contents,
                                     {.version = there->version})
                              .status());
  return true;
}

void Coordinator::Abandon() {
  if (!directory_is_made_ || may_be_committed_) return;
  removal_->DeleteAttempt(directory_, manifest_).IgnoreError();
  // Fails where another attempt has files there.
  storage_.Delete(directory_).IgnoreError();
}

// Checks a manifest without its checksums, which are not known before data is written.
absl::Status Coordinator::CheckPlan(const Manifest& planned) {
  Manifest checked = planned;
  for (DataFile& file : *checked.mutable_files()) {
    const uint64_t chunks = CeilDivide(file.size_bytes(), file.chunk_bytes());
    file.mutable_chunk_crc32c()->Resize(static_cast<int>(chunks), 0);
  }
  checked.set_format_major(kFormatMajor);
  checked.set_format_minor(kFormatMinor);
  return ValidateManifest(checked);
}

absl::Status Coordinator::PrepareDirectory() {
  TESSERA_ASSIGN_OR_RETURN(const Leftovers leftovers, removal_->DiscardLeftovers(directory_));
  if (leftovers == Leftovers::kCommitted && !overwrite_) {
    return absl::AlreadyExistsError(absl::StrCat("a committed checkpoint is in ",
                                                 storage_.Describe(directory_),
                                                 "; unless overwrite is set, it is never "
                                                 "overwritten"));
  }
  if (leftovers == Leftovers::kCommitted && !storage_.Traits().replaces_versions) {
    return absl::UnimplementedError(absl::StrCat(storage_.Describe(directory_),
                                                 " cannot be overwritten: the storage has no ",
                                                 "condition under which it replaces a file"));
  }
  other_attempts_left_ = leftovers != Leftovers::kNone;
  // Before anything is written: an attempt that is fenced later must fail.
  replaced_.reset();
  if (other_attempts_left_) {
    TESSERA_ASSIGN_OR_RETURN(replaced_, overwrite_ ? ReadInPlace(storage_, directory_)
                                                   : ReadTombstone(storage_, directory_));
  }
  TESSERA_RETURN_IF_ERROR(CheckRoom(storage_, root_, "the checkpoint", BytesOfFiles(manifest_)));
  directory_is_made_ = true;
  return storage_.MakeDirectory(directory_);
}

// Checks that the files to commit are still there: another run may have quarantined the directory.
// Returns all names in it.
absl::StatusOr<std::vector<std::string>> Coordinator::CheckFilesAreThere() {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names, ListIfThere(storage_, directory_));
  for (const DataFile& file : manifest_.files()) {
    if (std::ranges::binary_search(names, file.path())) continue;
    return absl::AbortedError(absl::StrCat(storage_.Describe(directory_), ": ", file.path(),
                                           ", written by this save, is gone: another process ",
                                           "saves or deletes there"));
  }
  return names;
}

}  // namespace tessera::ckpt
