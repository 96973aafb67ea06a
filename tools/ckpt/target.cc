#include "tools/ckpt/target.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/include/checkpoint.h"
#include "convert/core/foreign_storage.h"
#include "convert/open_foreign.h"

namespace tessera::ckpt {

namespace {

absl::StatusOr<Target> OpenForeignTarget(const std::string& name, const SourceOptions& options) {
  const convert::OpenForeignOptions open = {.format = options.format,
                                            .s3_endpoint = options.s3_endpoint};
  TESSERA_ASSIGN_OR_RETURN(const convert::FoundForeign found,
                           convert::FindForeign(name, /*step=*/std::nullopt, open));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<convert::ForeignStorage> storage,
                           convert::OpenForeign(found.name, open));
  Target target;
  target.format = storage->format();
  target.notes = found.notes;
  target.notes.insert(target.notes.end(), storage->notes().begin(), storage->notes().end());
  target.values = storage->values();
  target.foreign = storage.get();
  target.storage = std::move(storage);
  return target;
}

}  // namespace

absl::Status Target::CheckOtherRecords() const {
  if (foreign == nullptr) return absl::OkStatus();
  const std::vector<absl::Status> damaged = foreign->CheckOtherRecords();
  return damaged.empty() ? absl::OkStatus() : damaged.front();
}

bool IsForeignName(const std::string& name, const SourceOptions& options) {
  std::error_code error;
  const std::optional<std::string> local = LocalPathOfName(name);
  return !options.format.empty() ||
         (local.has_value() && std::filesystem::is_regular_file(*local, error));
}

absl::StatusOr<Target> OpenTarget(const std::string& name, const SourceOptions& options) {
  if (IsForeignName(name, options)) return OpenForeignTarget(name, options);
  Target target;
  TESSERA_ASSIGN_OR_RETURN(target.storage, OpenStorage(name, {.s3_endpoint = options.s3_endpoint}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, target.storage->List(""));
  if (std::ranges::find(names, kManifestFileName) != names.end()) {
    target.reading = ReadLock(*target.storage, "");
    return target;
  }
  absl::StatusOr<CheckpointInfo> latest = CheckpointFolder(*target.storage).FindLatest();
  if (absl::IsNotFound(latest.status())) {
    absl::StatusOr<Target> foreign = OpenForeignTarget(name, options);
    if (!absl::IsNotFound(foreign.status())) return foreign;
    return absl::NotFoundError(absl::StrCat(
        name, ": neither a checkpoint (no manifest.pb) nor a folder of checkpoints, ",
        "nor one of another framework (", absl::StrJoin(convert::FormatNames(), ", "), ")"));
  }
  TESSERA_RETURN_IF_ERROR(latest.status());
  target.directory = std::move(latest->directory);
  target.reading = ReadLock(*target.storage, target.directory);
  return target;
}

}  // namespace tessera::ckpt
