#ifndef TESSERA_CHECKPOINT_DIRECTORY_IN_PLACE_REMOVAL_H_
#define TESSERA_CHECKPOINT_DIRECTORY_IN_PLACE_REMOVAL_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/directory/removal.h"

namespace tessera::ckpt::internal {

// What both ways of removal do in a directory that keeps its name: in an object store, and in a
// file system if something in the directory is quarantined.
class InPlaceRemoval : public Removal {
 public:
  absl::Status DeleteOtherAttempts(std::string_view checkpoint_dir,
                                   const Manifest& committed) override;

 protected:
  using Names = std::set<std::string>;

  explicit InPlaceRemoval(Storage& storage) : storage_(storage) {}
  Storage& storage() const { return storage_; }

  // Takes the manifest away, durably. `names`: what is in the directory.
  virtual absl::Status Uncommit(std::string_view dir, const std::vector<std::string>& names,
                                const Names& quarantined) = 0;
  // Replaces a manifest that does not count as committed, so that no attempt that has begun can
  // commit. Aborted if it has another version by now.
  virtual absl::Status ReplaceByTombstone(const std::string& path, const std::string& version) = 0;
  // Before files of other attempts are deleted beside a committed checkpoint.
  virtual absl::Status FenceOthers(std::string_view dir) = 0;

  // The quarantined names among `names`, and those of all files that belong to them. Nullopt if
  // that is not known, so that everything in the directory must stay.
  absl::StatusOr<std::optional<Names>> FindQuarantined(std::string_view dir,
                                                       const std::vector<std::string>& names);

  // Makes a directory that keeps its name ready for another save.
  absl::StatusOr<Leftovers> FenceLeftovers(std::string_view dir,
                                           const std::vector<std::string>& names);

  // Deletes all but what is quarantined.
  absl::StatusOr<bool> DeleteInPlace(const CheckpointInfo& dir,
                                     const std::vector<std::string>& names,
                                     const Names& quarantined);

  // Data files, those of temporary manifests included, that are not quarantined.
  static std::vector<std::string> FindData(const std::vector<std::string>& names,
                                           const Names& quarantined);

 private:
  // Puts a new tombstone in the manifest's place, so that no attempt that has begun can commit.
  // False if one has committed, or others keep changing it.
  absl::StatusOr<bool> Fence(std::string_view dir);
  // Deletes the remains of a fence that is no longer needed.
  absl::Status ForgetFence(std::string_view dir, const std::vector<std::string>& names);

  Storage& storage_;
};

std::string ManifestPath(std::string_view dir);

bool Contains(const std::vector<std::string>& names, std::string_view name);

// None if the directory does not exist.
absl::StatusOr<std::vector<std::string>> ListIfThere(Storage& storage, std::string_view dir);

// "x.damaged", or the first of "x.damaged-2", "x.damaged-3" ... that is not in `names`, a listing.
std::string FreeName(const std::vector<std::string>& names, std::string_view name,
                     std::string_view word);

}  // namespace tessera::ckpt::internal

#endif  // TESSERA_CHECKPOINT_DIRECTORY_IN_PLACE_REMOVAL_H_
