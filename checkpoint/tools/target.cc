#include "checkpoint/tools/target.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {

absl::StatusOr<Target> OpenTarget(const std::string& name, const std::string& s3_endpoint) {
  Target target;
  TESSERA_ASSIGN_OR_RETURN(target.storage, OpenStorage(name, {.s3_endpoint = s3_endpoint}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, target.storage->List(""));
  if (std::ranges::find(names, kManifestFileName) != names.end()) return target;
  absl::StatusOr<CheckpointInfo> latest = Latest(*target.storage, "");
  if (absl::IsNotFound(latest.status())) {
    return absl::NotFoundError(
        absl::StrCat(name, ": neither a checkpoint (no manifest.pb) nor a folder of checkpoints"));
  }
  TESSERA_RETURN_IF_ERROR(latest.status());
  target.directory = std::move(latest->directory);
  return target;
}

}  // namespace tessera::ckpt
