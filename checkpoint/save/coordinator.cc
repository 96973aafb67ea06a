#include "checkpoint/save/coordinator.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {

Coordinator::Coordinator(Storage& storage, std::string_view root, const Manifest& metadata,
                         std::function<absl::StatusOr<std::string>(const PlannedSave&)> choose_root)
    : storage_(storage),
      choose_root_(std::move(choose_root)),
      root_(root),
      directory_(JoinPath(root, StepDirectoryName(metadata.trainer().step()))),
      attempt_(absl::StrFormat("%08x", std::random_device()())),
      metadata_(metadata) {}

absl::StatusOr<SaveTarget> Coordinator::Prepare(const Manifest& planned, bool is_new) {
  manifest_ = metadata_;
  *manifest_.mutable_tensors() = planned.tensors();
  *manifest_.mutable_files() = planned.files();
  for (DataFile& file : *manifest_.mutable_files()) {
    file.set_path(DataFileName(file.path(), attempt_));
  }
  TESSERA_RETURN_IF_ERROR(is_new ? CheckPlan(manifest_) : ValidateMetadata(manifest_));
  TESSERA_RETURN_IF_ERROR(ChooseDirectory());
  TESSERA_RETURN_IF_ERROR(PrepareDirectory());
  return SaveTarget{.directory = directory_, .attempt = attempt_};
}

absl::StatusOr<std::string> Coordinator::Commit(const std::vector<std::string>& payloads) {
  uint64_t bytes = 0;
  for (size_t r = 0; r < payloads.size(); ++r) {
    WriteReport report;
    if (!report.ParseFromString(payloads[r])) {
      return absl::InternalError(absl::StrCat("rank ", r, " sent a report that cannot be parsed"));
    }
    for (const FileReport& file : report.files()) {
      *manifest_.mutable_files(file.file_index())->mutable_chunk_crc32c() = file.chunk_crc32c();
    }
    for (const TensorReport& tensor : report.tensors()) AddDigest(tensor);
    bytes += report.bytes();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string encoded, EncodeManifest(manifest_));
  const absl::Status published =
      storage_.Publish(JoinPath(directory_, kManifestFileName), encoded, [&] {
        absl::Status status = CheckFilesAreThere();
        may_be_committed_ = status.ok();
        return status;
      });
  if (absl::IsAlreadyExists(published)) {
    may_be_committed_ = false;
    return absl::AlreadyExistsError(absl::StrCat("another run has committed ",
                                                 storage_.Describe(directory_),
                                                 " meanwhile; nothing of it was changed"));
  }
  TESSERA_RETURN_IF_ERROR(published);
  DeleteOtherAttempts();
  return std::to_string(bytes);
}

void Coordinator::Abandon() {
  if (!directory_is_made_ || may_be_committed_) return;
  for (const DataFile& file : manifest_.files()) {
    storage_.Delete(JoinPath(directory_, file.path())).IgnoreError();
  }
  // Fails where another attempt has files there.
  storage_.Delete(directory_).IgnoreError();
}

// Before anything is written, a manifest has no checksums yet.
absl::Status Coordinator::CheckPlan(const Manifest& planned) {
  Manifest checked = planned;
  for (DataFile& file : *checked.mutable_files()) {
    const uint64_t chunks = (file.size_bytes() + file.chunk_bytes() - 1) / file.chunk_bytes();
    file.mutable_chunk_crc32c()->Resize(static_cast<int>(chunks), 0);
  }
  checked.set_format_major(kFormatMajor);
  checked.set_format_minor(kFormatMinor);
  return ValidateManifest(checked);
}

absl::Status Coordinator::ChooseDirectory() {
  if (!choose_root_) return absl::OkStatus();
  const int64_t step = metadata_.trainer().step();
  TESSERA_ASSIGN_OR_RETURN(root_, choose_root_({.step = step, .data_bytes = DataBytes()}));
  directory_ = JoinPath(root_, StepDirectoryName(step));
  return absl::OkStatus();
}

absl::Status Coordinator::PrepareDirectory() {
  TESSERA_ASSIGN_OR_RETURN(const Leftovers leftovers, DiscardLeftovers(storage_, directory_));
  if (leftovers == Leftovers::kCommitted) {
    return absl::AlreadyExistsError(absl::StrCat("a committed checkpoint is in ",
                                                 storage_.Describe(directory_),
                                                 "; it is never overwritten"));
  }
  other_attempts_left_ = leftovers == Leftovers::kKept;
  TESSERA_RETURN_IF_ERROR(CheckRoom());
  directory_is_made_ = true;
  return storage_.MakeDirectory(directory_);
}

// Whether what is about to be committed is still in its place: another run may have set the
// directory aside.
absl::Status Coordinator::CheckFilesAreThere() {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage_.List(directory_));
  for (const DataFile& file : manifest_.files()) {
    if (std::ranges::binary_search(names, file.path())) continue;
    return absl::AbortedError(absl::StrCat(storage_.Describe(directory_), ": ", file.path(),
                                           ", written by this save, is gone: another process ",
                                           "saves or deletes there"));
  }
  return absl::OkStatus();
}

// Best effort: readers ignore such files. Once a manifest is there, no other attempt can succeed.
void Coordinator::DeleteOtherAttempts() {
  if (!other_attempts_left_) return;
  const absl::StatusOr<std::vector<std::string>> names = storage_.List(directory_);
  if (!names.ok()) return;
  std::set<std::string> ours = {std::string(kManifestFileName)};
  for (const DataFile& file : manifest_.files()) ours.insert(file.path());
  for (const std::string& name : *names) {
    if (!ours.contains(name)) storage_.Delete(JoinPath(directory_, name)).IgnoreError();
  }
}

absl::Status Coordinator::CheckRoom() {
  const uint64_t needed = DataBytes();
  const absl::StatusOr<uint64_t> free = storage_.FreeBytes();
  if (absl::IsUnimplemented(free.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(free.status());
  if (*free >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the checkpoint needs ", needed, " bytes (", HumanBytes(needed), ") but ",
                   storage_.Describe(root_), " has ", *free, " (", HumanBytes(*free), ") left"));
}

uint64_t Coordinator::DataBytes() const {
  uint64_t bytes = 0;
  for (const DataFile& file : manifest_.files()) bytes += file.size_bytes();
  return bytes;
}

void Coordinator::AddDigest(const TensorReport& report) {
  Digest& digest = *manifest_.mutable_tensors(report.manifest_tensor())->mutable_digest();
  LogicalDigest sum = {digest.lo(), digest.hi()};
  sum += LogicalDigest{report.digest().lo(), report.digest().hi()};
  digest.set_lo(sum.lo);
  digest.set_hi(sum.hi);
}

}  // namespace tessera::ckpt
