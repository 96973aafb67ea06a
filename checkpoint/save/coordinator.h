#ifndef TESSERA_CHECKPOINT_SAVE_COORDINATOR_H_
#define TESSERA_CHECKPOINT_SAVE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/directory/removal.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/save_options.h"
#include "checkpoint/save/save_agreement.h"
#include "checkpoint/save/save_messages.pb.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Rank 0's side of one save: the steps of the commit protocol (run_save.cc) that it does for all
// ranks. `metadata` must outlive this object.
class Coordinator {
 public:
  // `choose_root` returns the folder to save in, given the bytes of all data files. See SaveOptions
  // for `overwrite`, and SaveHooks for `may_commit`.
  Coordinator(Storage& storage, const Manifest& metadata,
              std::function<absl::StatusOr<std::string>(uint64_t data_bytes)> choose_root,
              bool overwrite = false, std::function<absl::Status()> may_commit = nullptr);

  // Does the end of step 1, and step 2: checks the tensors and files of the plan, unless the same
  // one was checked before, and returns where to write.
  absl::StatusOr<SaveTarget> Prepare(const PlannedManifest& planned);

  // Does steps 5 to 7: takes the reports of all ranks, and returns the number of bytes written.
  absl::StatusOr<uint64_t> Commit(const std::vector<std::string>& reports);

  // Returns what the reports that Commit() took say, by rank.
  const std::vector<SavePhases>& phases() const { return phases_; }

  // Checks the tensors and files of a new plan, as Prepare() does.
  static absl::Status CheckPlan(const Manifest& planned);

  // Frees the space of a failed save. No rank may be writing. Best effort: the next save of the
  // step and Prune would do the same.
  void Abandon();

 private:
  absl::Status PrepareDirectory();
  // Adds checksums and digests to the manifest. Returns the number of bytes written.
  absl::StatusOr<uint64_t> TakeReports(const std::vector<std::string>& reports);
  absl::Status CheckMayCommit();
  absl::StatusOr<std::vector<std::string>> CheckFilesAreThere();
  absl::Status SettleCommit(const absl::Status& published, const std::string& encoded);
  absl::Status TakeBackIfFilesAreGone(const std::string& encoded);
  absl::StatusOr<bool> TakeBack(const std::string& encoded);

  Storage& storage_;
  const std::unique_ptr<Removal> removal_;
  const std::function<absl::StatusOr<std::string>(uint64_t data_bytes)> choose_root_;
  std::string root_;
  std::string directory_;
  const std::string attempt_;
  const bool overwrite_;
  const std::function<absl::Status()> may_commit_;
  const Manifest& metadata_;
  Manifest manifest_;
  bool directory_is_made_ = false;
  bool other_attempts_left_ = false;  // files in the directory that could not be discarded
  // The tombstone that the manifest replaces or, with overwrite_, the manifest.
  std::optional<VersionedContents> replaced_;
  std::vector<std::string> names_at_commit_;  // in the directory before the first request
  bool may_be_committed_ = false;
  std::vector<SavePhases> phases_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_COORDINATOR_H_
