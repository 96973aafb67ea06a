#include "checkpoint/directory/quarantine.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/directory/directory.h"
#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt {

bool HasQuarantined(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, IsQuarantinedName);
}

std::string FreeQuarantinedName(const std::vector<std::string>& names, std::string_view name,
                                std::string_view word) {
  const std::string first = absl::StrCat(std::string(name), ".", std::string(word));
  std::string candidate = first;
  const auto is_taken = [&](const std::string& name) {
    return std::ranges::count(names, name) > 0;
  };
  for (int number = 2; is_taken(candidate) || is_taken(candidate + "/"); ++number) {
    candidate = absl::StrCat(first, "-", number);
  }
  return candidate;
}

std::string QuarantinedSignature(std::string_view quarantined) {
  return absl::StrCat(View(kManifestSignatureFileName),
                      View(quarantined.substr(kManifestFileName.size())));
}

absl::StatusOr<std::optional<std::set<std::string>>> FindQuarantined(
    Storage& storage, std::string_view dir, const std::vector<std::string>& names) {
  std::set<std::string> quarantined;
  for (const std::string& name : names) {
    if (!IsQuarantinedName(name)) continue;
    quarantined.insert(name);
    quarantined.insert(QuarantinedSignature(name));
    const absl::StatusOr<std::string> bytes =
        ReadAll(storage, JoinPath(dir, name), kMaxManifestBytes);
    const bool unreadable = absl::IsNotFound(bytes.status()) || absl::IsDataLoss(bytes.status()) ||
                            absl::IsResourceExhausted(bytes.status()) ||
                            absl::IsInvalidArgument(bytes.status());
    if (unreadable) return std::nullopt;
    TESSERA_RETURN_IF_ERROR(bytes.status());
    if (IsTombstone(*bytes)) continue;  // names no files
    const absl::StatusOr<Manifest> manifest = DecodeManifest(*bytes);
    if (!manifest.ok()) return std::nullopt;
    for (const DataFile& file : manifest->files()) {
      const size_t slash = file.path().find('/');
      quarantined.insert(slash == std::string::npos ? file.path()
                                                    : file.path().substr(0, slash + 1));
    }
  }
  return quarantined;
}

std::vector<std::string> FindData(const std::vector<std::string>& names,
                                  const std::set<std::string>& quarantined) {
  std::vector<std::string> data;
  for (const std::string& name : names) {
    const bool is_data =
        name != kManifestFileName && name != kFencedFileName && !name.ends_with('/');
    if (is_data && !quarantined.contains(name)) data.push_back(name);
  }
  return data;
}

}  // namespace tessera::ckpt
