#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/base/units.h"
#include "checkpoint/engine/agree.h"
#include "checkpoint/engine/checkpoint.h"
#include "checkpoint/engine/data_writer.h"
#include "checkpoint/engine/directory.h"
#include "checkpoint/engine/exchange.pb.h"
#include "checkpoint/engine/local_plan.h"
#include "checkpoint/engine/pieces.h"
#include "checkpoint/engine/save_agreement.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/save_plan.h"

// The commit protocol
//
//  1. Every rank describes its state; rank 0 makes one plan from all descriptions. A tensor that is not covered, a disagreement
//     between ranks, a committed checkpoint of the same step and a lack of room end the save here, before anything
//     is written.
//  2. Rank 0 removes a half-written directory of the same step, creates the directory anew and makes its name durable.
//     No manifest is in it, so to every reader it is no checkpoint.
//  3. Every rank writes its data files and makes their contents durable.
//  4. Every rank reports: its error, or its checksums and digests. One error ends the save for all.
//  5. Rank 0 writes the manifest under a temporary name and makes its contents durable.
//  6. Rank 0 makes the names of all files durable: a manifest must never be seen without its data.
//  7. Rank 0 renames the manifest to its final name. From here on the checkpoint exists.
//  8. Rank 0 makes the rename durable (the directory, then the root) and tells everybody.
//
// A crash before 7 leaves a directory without a manifest, which the next save of that step replaces and Prune removes. A crash
// after it leaves the whole checkpoint. A loss of power between 7 and 8 leaves either.

namespace tessera::ckpt {
namespace {

absl::Status CheckOptions(const SaveOptions& options) {
  if (options.checksum_chunk_bytes == 0 || options.checksum_chunk_bytes % 8 != 0 ||
      options.checksum_chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("checksum_chunk_bytes must be a multiple of 8 in (0, ", kMaxChunkBytes,
                     "], not ", options.checksum_chunk_bytes));
  }
  if (options.max_file_bytes == 0) return absl::InvalidArgumentError("max_file_bytes is 0");
  if (options.io_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("io_threads must be at least 1, not ", options.io_threads));
  }
  return absl::OkStatus();
}

absl::Status CheckMetadata(const Metadata& metadata) {
  if (metadata.trainer().step() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: trainer.step is ", metadata.trainer().step()));
  }
  if (metadata.tensors_size() > 0 || metadata.files_size() > 0) {
    return absl::InvalidArgumentError("metadata: tensors and files must be empty");
  }
  return absl::OkStatus();
}

// One save as rank 0 sees it.
class Coordinator {
 public:
  Coordinator(Storage& storage, std::string_view root, const Metadata& metadata)
      : storage_(storage),
        root_(root),
        directory_(JoinPath(root, StepDirectoryName(metadata.trainer().step()))),
        metadata_(metadata) {}

  // Step 2 and what is checked before it: the planned tensors and files -> the directory.
  absl::StatusOr<std::string> Prepare(const Manifest& planned) {
    manifest_ = metadata_;
    *manifest_.mutable_tensors() = planned.tensors();
    *manifest_.mutable_files() = planned.files();
    TESSERA_RETURN_IF_ERROR(CheckManifest());
    TESSERA_RETURN_IF_ERROR(PrepareDirectory());
    return directory_;
  }

  // Steps 5 to 8: the reports of all ranks -> the number of bytes written.
  absl::StatusOr<std::string> Commit(const std::vector<std::string>& payloads) {
    uint64_t bytes = 0;
    for (size_t r = 0; r < payloads.size(); ++r) {
      WriteReport report;
      if (!report.ParseFromString(payloads[r])) {
        return absl::InternalError(
            absl::StrCat("rank ", r, " sent a report that cannot be parsed"));
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
    TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(directory_));
    may_be_committed_ = true;
    TESSERA_RETURN_IF_ERROR(storage_.Rename(temporary, JoinPath(directory_, kManifestFileName)));
    TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(directory_));
    TESSERA_RETURN_IF_ERROR(storage_.SyncDirectory(root_));
    return std::to_string(bytes);
  }

  // Frees the room that a failed save took. Nobody may be writing. Best effort: the next save of the step and Prune
  // would do the same.
  void Abandon() {
    if (directory_is_ours_ && !may_be_committed_) storage_.DeleteTree(directory_).IgnoreError();
  }

 private:
  // Finds what is wrong with the metadata before anything is written.
  absl::Status CheckManifest() const {
    Manifest checked = manifest_;
    for (DataFile& file : *checked.mutable_files()) {
      const uint64_t chunks = (file.size_bytes() + file.chunk_bytes() - 1) / file.chunk_bytes();
      file.mutable_chunk_crc32c()->Resize(static_cast<int>(chunks), 0);
    }
    checked.set_format_major(kFormatMajor);
    checked.set_format_minor(kFormatMinor);
    return ValidateManifest(checked);
  }

  absl::Status PrepareDirectory() {
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage_, directory_));
    if (committed) {
      return absl::AlreadyExistsError(absl::StrCat("a committed checkpoint is in ",
                                                   storage_.Describe(directory_),
                                                   "; it is never overwritten"));
    }
    TESSERA_RETURN_IF_ERROR(storage_.MakeDirectory(root_));
    const absl::Status removed = storage_.DeleteTree(directory_);
    if (!absl::IsNotFound(removed)) TESSERA_RETURN_IF_ERROR(removed);
    TESSERA_RETURN_IF_ERROR(CheckRoom());
    directory_is_ours_ = true;
    TESSERA_RETURN_IF_ERROR(storage_.MakeDirectory(directory_));
    return storage_.SyncDirectory(root_);
  }

  absl::Status CheckRoom() {
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

  void AddDigest(const TensorReport& report) {
    Digest& digest = *manifest_.mutable_tensors(report.manifest_tensor())->mutable_digest();
    LogicalDigest sum = {digest.lo(), digest.hi()};
    sum += LogicalDigest{report.digest().lo(), report.digest().hi()};
    digest.set_lo(sum.lo);
    digest.set_hi(sum.hi);
  }

  Storage& storage_;
  const std::string root_;
  const std::string directory_;
  const Metadata& metadata_;
  Manifest manifest_;
  bool directory_is_ours_ = false;
  bool may_be_committed_ = false;
};

absl::StatusOr<LocalPlan> Describe(const Metadata& metadata, const StateDict& state,
                                   const SaveOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  TESSERA_RETURN_IF_ERROR(CheckMetadata(metadata));
  TESSERA_RETURN_IF_ERROR(CheckStateDict(state));
  return DescribeState(state);
}

// Step 3.
absl::StatusOr<std::string> Write(Storage& storage, const StateDict& state, const LocalPlan& local,
                                  const SaveTask& task, const SaveOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      const WriteReport report,
      WriteDataFiles(storage, task.directory, state, local, task.plan,
                     {options.checksum_chunk_bytes, options.io_threads, options.staging_bytes}));
  return report.SerializeAsString();
}

}  // namespace

absl::StatusOr<SaveReport> Save(Storage& storage, std::string_view root, const Metadata& metadata,
                                const StateDict& state, ProcessGroup& group,
                                const SaveOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Coordinator coordinator(storage, root, metadata);
  const absl::StatusOr<LocalPlan> local = Describe(metadata, state, options);
  SavePlanOptions plan_options;
  plan_options.max_file_bytes = options.max_file_bytes;
  plan_options.checksum_chunk_bytes = options.checksum_chunk_bytes;
  PlanCache cache;
  const absl::StatusOr<SaveTask> task = AgreeOnSave(
      group, local, metadata.trainer().step(), plan_options, cache,
      [&](const Manifest& planned, bool) { return coordinator.Prepare(planned); },
      options.deadline);
  if (!task.ok()) {
    coordinator.Abandon();
    return task.status();
  }

  bool everyone_reported = false;
  const absl::StatusOr<std::string> committed = Agree(
      group, Write(storage, state, *local, *task, options),
      [&](const std::vector<std::string>& payloads) { return coordinator.Commit(payloads); },
      options.deadline, &everyone_reported);
  if (!committed.ok()) {
    if (everyone_reported) coordinator.Abandon();
    return committed.status();
  }
  SaveReport report;
  report.directory = task->directory;
  if (!absl::SimpleAtoi(*committed, &report.bytes_written)) {
    return absl::InternalError("rank 0 sent a bad report");
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace tessera::ckpt
