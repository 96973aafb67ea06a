#include "convert/describe_place.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"
#include "storage/open_storage.h"

namespace tessera::ckpt::convert {
namespace {

// A file that a checkpoint with the other files must have.
struct MissingFile {
  const char* others;  // a pattern
  const char* name;
  const char* purpose;
};

constexpr MissingFile kMissingFiles[] = {
    {"*.distcp", ".metadata", "the index of a checkpoint of PyTorch's DCP"},
    {"*-of-*.safetensors", "model.safetensors.index.json", "the index of sharded weights"},
    {"*-of-*.bin", "pytorch_model.bin.index.json", "the index of sharded weights"},
};

bool IsThere(Storage& folder, const std::string& name) { return folder.Open(name).ok(); }

// The entries of a run's folder are checkpoints only with their manifests.
std::string DescribeSteps(Storage& folder, const std::vector<std::string>& names) {
  std::vector<std::string> without;
  for (std::string name : names) {
    if (!name.ends_with('/')) continue;
    name.pop_back();
    if (ParseStepDirectoryName(name).has_value() &&
        !IsThere(folder, absl::StrCat(name, "/", std::string(kManifestFileName)))) {
      without.push_back(name);
    }
  }
  if (without.empty()) return "";
  return absl::StrCat("; ", JoinFirst(without, ", "), without.size() == 1 ? " has" : " have",
                      " no ", std::string(kManifestFileName),
                      ": a save that was not completed, or files that were lost");
}

}  // namespace

std::string DescribeContents(Storage& folder) {
  absl::StatusOr<std::vector<std::string>> names = folder.List("");
  if (!names.ok()) return std::string(names.status().message());
  if (names->empty()) return "it is empty";
  std::ranges::sort(*names);
  std::string text = absl::StrCat("it holds ", JoinFirst(*names, ", "));
  for (const MissingFile& missing : kMissingFiles) {
    const auto matches = [&](const std::string& name) { return MatchesGlob(missing.others, name); };
    if (std::ranges::any_of(*names, matches) && !IsThere(folder, missing.name)) {
      absl::StrAppend(&text, "; ", missing.name, ", ", missing.purpose, ", is missing");
    }
  }
  return absl::StrCat(text, DescribeSteps(folder, *names));
}

std::string DescribeAbsence(std::string_view name) {
  std::error_code error;
  const std::optional<std::string> local = LocalPathOfName(name);
  if (local.has_value() && std::filesystem::is_symlink(*local, error)) {
    return absl::StrCat("is a link to ", std::filesystem::read_symlink(*local, error).string(),
                        ", which is not there");
  }
  return "is not there";
}

}  // namespace tessera::ckpt::convert
