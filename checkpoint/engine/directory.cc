#include "checkpoint/engine/directory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "checkpoint/base/status_macros.h"
#include "checkpoint/engine/checkpoint.h"
#include "checkpoint/format/manifest.h"

namespace tessera::ckpt {
namespace {

constexpr std::string_view kStepPrefix = "step-";

struct StepDirectory {
  int64_t step;
  std::string path;
  bool committed;
};

// All of them, ascending by step. Empty if the root is not there.
absl::StatusOr<std::vector<StepDirectory>> ListStepDirectories(Storage& storage,
                                                               std::string_view root) {
  std::vector<StepDirectory> found;
  const absl::StatusOr<std::vector<std::string>> names = storage.List(root);
  if (absl::IsNotFound(names.status())) return found;
  TESSERA_RETURN_IF_ERROR(names.status());
  for (std::string_view name : *names) {
    if (!name.ends_with('/')) continue;
    name.remove_suffix(1);
    const std::optional<int64_t> step = ParseStepDirectoryName(name);
    if (!step) continue;
    std::string path = JoinPath(root, name);
    TESSERA_ASSIGN_OR_RETURN(const bool committed, IsCommitted(storage, path));
    found.push_back({*step, std::move(path), committed});
  }
  std::ranges::sort(found, {}, &StepDirectory::step);
  return found;
}

absl::StatusOr<std::vector<CheckpointInfo>> ListThose(Storage& storage, std::string_view root,
                                                      bool committed) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<StepDirectory> directories,
                           ListStepDirectories(storage, root));
  std::vector<CheckpointInfo> those;
  for (const StepDirectory& dir : directories) {
    if (dir.committed == committed) those.push_back({dir.step, StepDirectoryName(dir.step)});
  }
  return those;
}

// What a reader who asked for something else may have meant.
std::string DescribeNeighbours(Storage& storage, std::string_view checkpoint_dir) {
  std::string_view root = checkpoint_dir;
  root = root.find('/') == root.npos ? std::string_view() : root.substr(0, root.rfind('/'));
  for (std::string_view place : {checkpoint_dir, root}) {
    const auto checkpoints = List(storage, place);
    if (!checkpoints.ok() || checkpoints->empty()) continue;
    std::vector<std::string> names;
    for (const CheckpointInfo& info : *checkpoints) names.push_back(info.directory);
    if (names.size() > 10) names.erase(names.begin(), names.end() - 10);
    return absl::StrCat("checkpoints in ", storage.Describe(place), ": ",
                        absl::StrJoin(names, ", "));
  }
  return absl::StrCat("no checkpoint in ", storage.Describe(root), " either");
}

// "c" of "a/b/c" and of "a/b/c/".
std::string LastComponent(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

absl::Status RemoveDirectory(Storage& storage, std::string_view root, const StepDirectory& dir) {
  if (dir.committed) {
    TESSERA_RETURN_IF_ERROR(storage.Delete(JoinPath(dir.path, kManifestFileName)));
    TESSERA_RETURN_IF_ERROR(storage.SyncDirectory(dir.path));
  }
  TESSERA_RETURN_IF_ERROR(storage.DeleteTree(dir.path));
  return storage.SyncDirectory(root);
}

}  // namespace

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && !name.empty()) path += '/';
  path += name;
  return path;
}

std::string StepDirectoryName(int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return std::string(kStepPrefix) + digits;
}

std::optional<int64_t> ParseStepDirectoryName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (StepDirectoryName(step) != name) return std::nullopt;
  return step;
}

absl::StatusOr<bool> IsCommitted(Storage& storage, std::string_view checkpoint_dir) {
  const absl::StatusOr<std::vector<std::string>> names = storage.List(checkpoint_dir);
  if (absl::IsNotFound(names.status())) return false;
  TESSERA_RETURN_IF_ERROR(names.status());
  return std::ranges::find(*names, kManifestFileName) != names->end();
}

absl::StatusOr<std::string> ReadManifestBytes(Storage& storage, std::string_view checkpoint_dir) {
  absl::StatusOr<std::string> bytes =
      ReadAll(storage, JoinPath(checkpoint_dir, kManifestFileName), kMaxManifestBytes);
  if (absl::IsNotFound(bytes.status())) {
    return absl::NotFoundError(absl::StrCat("no committed checkpoint in ",
                                            storage.Describe(checkpoint_dir), " (",
                                            std::string(kManifestFileName), " is missing); ",
                                            DescribeNeighbours(storage, checkpoint_dir)));
  }
  // A pipe in its place.
  if (absl::IsInvalidArgument(bytes.status())) return absl::DataLossError(bytes.status().message());
  return bytes;
}

absl::StatusOr<Manifest> DecodeManifestOf(Storage& storage, std::string_view checkpoint_dir,
                                          std::string_view bytes) {
  const auto path = [&] { return storage.Describe(JoinPath(checkpoint_dir, kManifestFileName)); };
  absl::StatusOr<Manifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) {
    const std::string file_name = absl::StrCat(std::string(kManifestFileName), ": ");
    return absl::Status(
        manifest.status().code(),
        absl::StrCat(path(), ": ", absl::StripPrefix(manifest.status().message(), file_name)));
  }
  const std::string name = LastComponent(checkpoint_dir.empty() ? storage.Describe(checkpoint_dir)
                                                                : std::string(checkpoint_dir));
  const std::optional<int64_t> step = ParseStepDirectoryName(name);
  if (step.has_value() && *step != manifest->trainer().step()) {
    return absl::DataLossError(absl::StrCat(path(), ": the manifest is that of step ",
                                            manifest->trainer().step(),
                                            ", its directory is called ", name));
  }
  return manifest;
}

absl::StatusOr<Manifest> ReadManifest(Storage& storage, std::string_view checkpoint_dir) {
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes, ReadManifestBytes(storage, checkpoint_dir));
  return DecodeManifestOf(storage, checkpoint_dir, bytes);
}

absl::StatusOr<std::vector<CheckpointInfo>> List(Storage& storage, std::string_view root) {
  return ListThose(storage, root, /*committed=*/true);
}

absl::StatusOr<std::vector<CheckpointInfo>> ListUncommitted(Storage& storage,
                                                            std::string_view root) {
  return ListThose(storage, root, /*committed=*/false);
}

absl::Status Prune(Storage& storage, std::string_view root, int keep) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<StepDirectory> directories,
                           ListStepDirectories(storage, root));
  int64_t committed = std::ranges::count(directories, true, &StepDirectory::committed);
  int64_t excess = committed - std::max(keep, 1);
  for (const StepDirectory& dir : directories) {
    if (committed == 0) break;  // what follows is newer than the newest committed one
    if (dir.committed) --committed;
    if (dir.committed && excess-- <= 0) continue;
    TESSERA_RETURN_IF_ERROR(RemoveDirectory(storage, root, dir));
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt
