// Names of quarantined checkpoints, which no reader finds and nothing deletes (directory.h).
#ifndef TESSERA_CHECKPOINT_DIRECTORY_QUARANTINE_H_
#define TESSERA_CHECKPOINT_DIRECTORY_QUARANTINE_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Returns whether a manifest among the names in a directory is quarantined.
bool HasQuarantined(const std::vector<std::string>& names);

// Returns "x.damaged", or the first of "x.damaged-2", "x.damaged-3" ... that is not in `names`, if
// `name` is "x" and `word` is "damaged".
std::string FreeQuarantinedName(const std::vector<std::string>& names, std::string_view name,
                                std::string_view word);

// Returns the name of the signature of a quarantined manifest: "manifest.sig.abandoned".
std::string QuarantinedSignature(std::string_view quarantined);

// Returns the quarantined names among `names`, and those of all files that belong to them. Nullopt
// if that is not known, so that everything in the directory must stay.
absl::StatusOr<std::optional<std::set<std::string>>> FindQuarantined(
    Storage& storage, std::string_view checkpoint_dir, const std::vector<std::string>& names);

// Returns the data files and temporary manifests among the names in a directory that are not
// `quarantined`.
std::vector<std::string> FindData(const std::vector<std::string>& names,
                                  const std::set<std::string>& quarantined);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_DIRECTORY_QUARANTINE_H_
