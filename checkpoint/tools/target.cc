#include "checkpoint/tools/target.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/storage/posix_storage.h"

namespace tessera::ckpt {

absl::StatusOr<Target> OpenTarget(const std::string& path) {
  Target target;
  TESSERA_ASSIGN_OR_RETURN(target.storage, OpenPosixStorage(path));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, target.storage->List(""));
  if (std::ranges::find(names, kManifestFileName) != names.end()) return target;
  std::vector<UnreadableCheckpoint> unreadable;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> checkpoints,
                           List(*target.storage, "", &unreadable));
  // The newest is meant, which may be that one.
  if (!unreadable.empty() &&
      (checkpoints.empty() || checkpoints.back().step < unreadable.back().step)) {
    return unreadable.back().status;
  }
  if (checkpoints.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": neither a checkpoint (no manifest.pb) nor a folder of checkpoints"));
  }
  target.directory = checkpoints.back().directory;
  return target;
}

}  // namespace tessera::ckpt
