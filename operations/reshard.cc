#include "operations/reshard.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/include/manifest.h"
#include "convert/core/digests.h"
#include "convert/core/reading.h"
#include "convert/core/saved_values.h"
#include "convert/open_foreign.h"
#include "storage/open_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt {
namespace {

// Returns whether a checkpoint is committed in the directory of that name.
absl::StatusOr<bool> HoldsCheckpoint(const std::string& name, const OpenStorageOptions& stores) {
  const absl::StatusOr<std::unique_ptr<Storage>> storage = OpenStorage(name, stores);
  // No directory, which is found out when it is opened for writing.
  if (absl::IsNotFound(storage.status()) || absl::IsInvalidArgument(storage.status())) return false;
  TESSERA_RETURN_IF_ERROR(storage.status());
  return IsCommitted(**storage, "");
}

// `name` is the folder, or the checkpoint's directory in it, which must be named for its step.
absl::StatusOr<ReshardDestination> ChooseDestination(const std::string& name, int64_t step,
                                                     const OpenStorageOptions& stores) {
  std::string_view folder = name;
  while (folder.size() > 1 && folder.ends_with('/')) folder.remove_suffix(1);  // "a/b/"
  ReshardDestination place = {name, StepDirectoryName(step)};
  if (folder == place.directory) {
    place.folder = ".";
  } else if (folder.ends_with(absl::StrCat("/", place.directory))) {
    place.folder = folder.substr(0, folder.size() - place.directory.size() - 1);
    if (place.folder.empty()) place.folder = "/";
  }
  TESSERA_ASSIGN_OR_RETURN(const bool exists, HoldsCheckpoint(place.path(), stores));
  if (exists) {
    return AlreadyExists(place.path(), " is a committed checkpoint, which is never overwritten");
  }
  TESSERA_ASSIGN_OR_RETURN(const bool is_checkpoint, HoldsCheckpoint(place.folder, stores));
  if (is_checkpoint) {
    return AlreadyExists(place.folder, " is a checkpoint, expected the folder for the new one");
  }
  return place;
}

// Returns a manifest without tensors and files. Adds to `notes` what has no place in it.
Manifest NewMetadata(const NamedCheckpoint& source, const Topology& topology,
                     const std::string& program, std::vector<std::string>& notes) {
  Manifest metadata = source.opened->manifest();
  const std::string unread = convert::DescribeUnread(source.format);
  if (!unread.empty()) notes.push_back(unread);
  if (const convert::SavedValue* const state = source.foreign_state()) {
    convert::NoteLeftOut("values with the name of another value or tensor",
                         convert::SetEntries(*state, metadata), notes);
  }
  metadata.clear_tensors();
  metadata.clear_files();
  *metadata.mutable_topology() = ToProto(topology);
  metadata.mutable_producer()->set_program(program);
  metadata.mutable_producer()->set_created_unix_ms(absl::ToUnixMillis(absl::Now()));
  return metadata;
}

absl::StatusOr<RewriteReport> Write(const ReshardPlan& plan, const ReshardRequest& request) {
  TESSERA_RETURN_IF_ERROR(plan.source.CheckOtherRecords());
  const std::optional<std::string> local = LocalPathOfName(plan.place.folder);
  std::error_code error;
  const bool is_new = local.has_value() && !std::filesystem::exists(*local, error);
  const auto write = [&]() -> absl::StatusOr<RewriteReport> {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                             OpenStorage(plan.place.folder, ForSaving(request.open.stores)));
    return Rewrite(*plan.source.opened, {plan.layout.ranks, plan.plan}, *storage, "", plan.metadata,
                   {.memory_bytes = request.memory_bytes,
                    .io_threads = request.io_threads,
                    .progress = request.progress});
  };
  absl::StatusOr<RewriteReport> report = write();
  // The folder is still empty.
  if (!report.ok() && is_new) rmdir(local->c_str());
  return report;
}

// Another framework's files have no digests: reads them once more, and compares their digests with
// those of what was written. Returns the number of tensors; DataLoss, naming the tensor.
absl::StatusOr<int64_t> CompareWithForeign(const ReshardPlan& plan, const ReshardRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                           OpenStorage(plan.place.path(), request.open.stores));
  TESSERA_ASSIGN_OR_RETURN(const Manifest written, ReadManifest(*storage, ""));
  TESSERA_ASSIGN_OR_RETURN(
      const convert::DigestsByName read,
      convert::ReadDigests(*plan.source.opened,
                           {.io_threads = request.io_threads, .progress = request.progress}));
  int64_t compared = 0;
  for (const LogicalTensor& tensor : written.tensors()) {
    if (!tensor.has_digest()) continue;
    const auto at = read.find(tensor.name());
    if (at == read.end() || at->second != FromProto(tensor.digest())) {
      return DataLoss(plan.place.path(), ": tensor ", tensor.name(), " is not that of ",
                      plan.source.Describe());
    }
    ++compared;
  }
  return compared;
}

}  // namespace

absl::StatusOr<ReshardPlan> PlanReshard(const ReshardRequest& request) {
  ReshardPlan plan;
  TESSERA_ASSIGN_OR_RETURN(plan.topology, ParseTopology(request.topology));
  TESSERA_ASSIGN_OR_RETURN(plan.source, FindCheckpoint(request.source, request.open));
  TESSERA_RETURN_IF_ERROR(plan.source.opened.status());
  TESSERA_ASSIGN_OR_RETURN(
      plan.place,
      ChooseDestination(request.destination, plan.source.opened->step(), request.open.stores));
  plan.metadata = NewMetadata(plan.source, plan.topology, request.program, plan.source.notes);
  const Manifest& manifest = plan.source.opened->manifest();
  absl::StatusOr<RankLayout> layout = LayOutRanks(manifest, plan.topology, request.layout);
  if (!plan.source.format.empty() && manifest.tensors().empty() &&
      convert::IsEmpty(plan.source.state)) {
    layout =
        FailedPrecondition(plan.source.Describe(), " has neither tensors nor values to convert");
  }
  if (!layout.ok()) return convert::WithNotes(layout.status(), plan.source.notes);
  plan.layout = *std::move(layout);
  TESSERA_ASSIGN_OR_RETURN(plan.plan, PlanSave(plan.layout.ranks, SavePlanOptions()));
  return plan;
}

absl::StatusOr<RewriteReport> Reshard(const ReshardPlan& plan, const ReshardRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(RewriteReport report, Write(plan, request));
  // The digests of a seal have been compared.
  if (plan.source.format.empty() || report.digests_new == 0) return report;
  TESSERA_ASSIGN_OR_RETURN(report.digests_compared, CompareWithForeign(plan, request));
  report.digests_new = 0;
  return report;
}

}  // namespace tessera::ckpt
