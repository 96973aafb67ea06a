#include "operations/named_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest_codec.h"
#include "checkpoint/internal/known_checkpoint.h"
#include "checkpoint/internal/read_lock.h"
#include "checkpoint/internal/saved_checkpoints.h"
#include "convert/core/foreign_checkpoint.h"
#include "convert/core/reading.h"
#include "convert/open_foreign.h"
#include "convert/source_place.h"

namespace tessera::ckpt {
namespace {

// Returns a checkpoint that is sealed but could not be opened.
NamedCheckpoint Unopened(const convert::FoundForeign& found, convert::FoundSeal seal,
                         const absl::Status& status) {
  NamedCheckpoint checkpoint = {
      .storage = seal.folder,
      .opened = absl::Status(
          absl::IsNotFound(status) ? absl::StatusCode::kDataLoss : status.code(),
          absl::StrCat(status.message(), " (it is sealed: ckpt verify shows what has changed)")),
      .format = seal.seal.ok() ? seal.seal->format() : "sealed",
      .foreign_name = found.name,
      .notes = found.notes};
  checkpoint.seal = std::move(seal);
  return checkpoint;
}

absl::StatusOr<NamedCheckpoint> FindForeignCheckpoint(const std::string& name,
                                                      const SourceOptions& options) {
  convert::OpenForeignOptions open = {.format = options.format,
                                      .stores = options.stores,
                                      .parameter_names_file = options.parameter_names_file};
  convert::FoundForeign found = {name, {}};
  TESSERA_ASSIGN_OR_RETURN(std::optional<convert::FoundSeal> seal,
                           convert::FindSeal(name, options.stores));
  if (!seal.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(found, convert::FindForeign(name, options.step, open));
    TESSERA_ASSIGN_OR_RETURN(seal, convert::FindSeal(found.name, options.stores));
  }
  if (!options.use_seal) seal.reset();
  if (seal.has_value() && seal->seal.ok()) {
    open.seal = &*seal->seal;
    const std::string& sealed = open.seal->format();
    if (open.format.empty() && convert::IsFormatName(sealed)) open.format = sealed;
  }
  absl::StatusOr<std::unique_ptr<convert::ForeignStorage>> opened =
      convert::OpenForeign(found.name, open);
  if (!opened.ok()) {
    if (!seal.has_value()) return opened.status();
    return Unopened(found, *std::move(seal), opened.status());
  }
  std::unique_ptr<convert::ForeignStorage> storage = *std::move(opened);
  NamedCheckpoint checkpoint = {.opened = Checkpoint::Open(*storage, ""),
                                .format = storage->format(),
                                .foreign_name = found.name,
                                .notes = found.notes,
                                .state = storage->state(),
                                .foreign = storage.get()};
  checkpoint.notes.insert(checkpoint.notes.end(), storage->notes().begin(), storage->notes().end());
  checkpoint.storage = std::move(storage);
  if (seal.has_value() && !seal->seal.ok()) {
    checkpoint.notes.push_back(
        absl::StrCat("The seal is not used: ", seal->seal.status().message(), "."));
  }
  checkpoint.seal = std::move(seal);
  return checkpoint;
}

// Sets the step of a checkpoint that records another step, or none.
void SetStep(int64_t step, NamedCheckpoint& checkpoint) {
  if (!checkpoint.opened.ok()) return;
  Manifest manifest = checkpoint.opened->manifest();
  if (convert::TellsStep(manifest) && manifest.trainer().step() == step) return;
  if (manifest.has_trainer()) {
    manifest.mutable_trainer()->set_step(step);
    auto& extra = *manifest.mutable_trainer()->mutable_extra();
    extra.erase(convert::kUnknownStepEntry);
    // The optimizer's own count remains; at most `step` of its updates are the run's.
    int64_t updates = 0;
    const auto count = extra.find("optimizer_updates");
    if (count != extra.end() && absl::SimpleAtoi(count->second, &updates)) {
      extra.erase("earlier_updates");
      if (updates > step) extra["earlier_updates"] = absl::StrCat(updates - step);
    }
  } else {
    convert::SetProgress(step, std::nullopt, manifest);
  }
  checkpoint.opened = CheckpointOfManifest(
      checkpoint.storage, checkpoint.directory, std::move(manifest),
      std::make_shared<const ReadLock>(*checkpoint.storage, checkpoint.directory));
}

// Returns the checkpoint of the step in a folder, or the one that ChooseToRead() finds.
absl::StatusOr<FoundCheckpoint> FindInFolder(Storage& storage, std::optional<int64_t> step) {
  std::vector<CheckpointInfo> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all,
                           ListForResume(storage, &unreadable));
  for (const CheckpointInfo& checkpoint : unreadable) {
    const bool is_newest = all.empty() || all.front().step < checkpoint.step;
    if (!step.has_value() && is_newest) return checkpoint.readable;
  }
  if (all.empty()) return absl::NotFoundError("");
  if (!step.has_value()) return ChooseToRead(storage, all);
  const auto found = std::ranges::find(all, *step, &CheckpointInfo::step);
  if (found != all.end()) return FoundCheckpoint{*found, {}};
  return FailedPrecondition(storage.Describe(""), ": no checkpoint of step ", *step,
                            "; the newest one is that of step ", all.front().step);
}

absl::StatusOr<NamedCheckpoint> FindByName(const std::string& name, const SourceOptions& options) {
  if (IsForeignName(name, options)) return FindForeignCheckpoint(name, options);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, OpenStorage(name, options.stores));
  const auto at = [&](std::string directory) {
    absl::StatusOr<Checkpoint> opened = Checkpoint::Open(*storage, directory);
    return NamedCheckpoint{
        .storage = storage, .directory = std::move(directory), .opened = std::move(opened)};
  };
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, storage->List(""));
  if (std::ranges::find(names, kManifestFileName) != names.end()) return at("");
  absl::StatusOr<FoundCheckpoint> chosen = FindInFolder(*storage, options.step);
  if (absl::IsNotFound(chosen.status())) {
    absl::StatusOr<NamedCheckpoint> foreign = FindForeignCheckpoint(name, options);
    if (!absl::IsNotFound(foreign.status())) return foreign;
    return NotFound(name, ": neither a checkpoint (no manifest.pb) nor a folder of checkpoints, ",
                    "nor one of another framework (", absl::StrJoin(convert::FormatNames(), ", "),
                    "); ", convert::DescribeContents(*storage));
  }
  TESSERA_RETURN_IF_ERROR(chosen.status());
  NamedCheckpoint found = at(std::move(chosen->checkpoint.directory));
  found.notes = std::move(chosen->notes);
  return found;
}

}  // namespace

absl::Status NamedCheckpoint::CheckOtherRecords() const {
  if (foreign == nullptr) return absl::OkStatus();
  const std::vector<absl::Status> damaged = foreign->CheckOtherRecords();
  return damaged.empty() ? absl::OkStatus() : damaged.front();
}

bool IsForeignName(const std::string& name, const SourceOptions& options) {
  std::error_code error;
  const std::optional<std::string> local = LocalPathOfName(name);
  return !options.format.empty() || !options.parameter_names_file.empty() ||
         (local.has_value() && (std::filesystem::is_regular_file(*local, error) ||
                                std::filesystem::is_regular_file(
                                    absl::StrCat(*local, ".", convert::kSealFileName), error)));
}

absl::StatusOr<NamedCheckpoint> FindCheckpoint(const std::string& name,
                                               const SourceOptions& options) {
  absl::StatusOr<NamedCheckpoint> found = FindByName(name, options);
  if (found.ok() && options.step.has_value()) SetStep(*options.step, *found);
  return found;
}

absl::StatusOr<convert::WriteForeignReport> Export(const NamedCheckpoint& source,
                                                   const std::string& folder,
                                                   const convert::WriteForeignOptions& options) {
  TESSERA_RETURN_IF_ERROR(source.opened.status());
  TESSERA_RETURN_IF_ERROR(source.CheckOtherRecords());
  absl::StatusOr<convert::WriteForeignReport> report =
      convert::WriteForeign(*source.opened, folder, options);
  if (!report.ok()) return convert::WithNotes(report.status(), source.notes);
  report->notes.insert(report->notes.begin(), source.notes.begin(), source.notes.end());
  const std::string unread = convert::DescribeUnread(source.format);
  if (!unread.empty()) report->notes.push_back(unread);
  return report;
}

}  // namespace tessera::ckpt
