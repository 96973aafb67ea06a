#include "checkpoint/save/coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {

Coordinator::Coordinator(Storage& storage, std::string_view root, const Manifest& metadata)
    : storage_(storage),
      root_(root),
      directory_(JoinPath(root, StepDirectoryName(metadata.trainer().step()))),
      metadata_(metadata) {}

absl::StatusOr<std::string> Coordinator::Prepare(const Manifest& planned, bool is_new) {
  manifest_ = metadata_;
  *manifest_.mutable_tensors() = planned.tensors();
  *manifest_.mutable_files() = planned.files();
  TESSERA_RETURN_IF_ERROR(is_new ? CheckPlan(manifest_) : ValidateMetadata(manifest_));
  TESSERA_RETURN_IF_ERROR(PrepareDirectory());
  return directory_;
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
  TESSERA_ASSIGN_OR_RETURN(const std::string encoded, EncodeManifest(std::move(manifest_)));
  const std::string temporary = JoinPath(directory_, kTemporaryManifestFileName);
  TESSERA_RETURN_IF_ERROR(WriteAll(storage_, temporary, encoded));
  may_be_committed_ = true;
  TESSERA_RETURN_IF_ERROR(storage_.Rename(temporary, JoinPath(directory_, kManifestFileName)));
  TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(directory_));
  return std::to_string(bytes);
}

void Coordinator::Abandon() {
  if (directory_is_ours_ && !may_be_committed_) storage_.DeleteTree(directory_).IgnoreError();
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

absl::Status Coordinator::PrepareDirectory() {
  TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage_, directory_));
  if (committed) {
    return absl::AlreadyExistsError(absl::StrCat("a committed checkpoint is in ",
                                                 storage_.Describe(directory_),
                                                 "; it is never overwritten"));
  }
  const absl::Status removed = storage_.DeleteTree(directory_);
  if (!absl::IsNotFound(removed)) TESSERA_RETURN_IF_ERROR(removed);
  TESSERA_RETURN_IF_ERROR(CheckRoom());
  directory_is_ours_ = true;
  return storage_.MakeDirectory(directory_);
}

absl::Status Coordinator::CheckRoom() {
  uint64_t needed = 0;
  for (const DataFile& file : manifest_.files()) needed += file.size_bytes();
  const absl::StatusOr<uint64_t> free = storage_.FreeBytes();
  if (absl::IsUnimplemented(free.status())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(free.status());
  if (*free >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the checkpoint needs ", needed, " bytes (", HumanBytes(needed), ") but ",
                   storage_.Describe(root_), " has ", *free, " (", HumanBytes(*free), ") left"));
}

void Coordinator::AddDigest(const TensorReport& report) {
  Digest& digest = *manifest_.mutable_tensors(report.manifest_tensor())->mutable_digest();
  LogicalDigest sum = {digest.lo(), digest.hi()};
  sum += LogicalDigest{report.digest().lo(), report.digest().hi()};
  digest.set_lo(sum.lo);
  digest.set_hi(sum.hi);
}

}  // namespace tessera::ckpt
