#ifndef TESSERA_CHECKPOINT_INCLUDE_FOLDER_LOCK_H_
#define TESSERA_CHECKPOINT_INCLUDE_FOLDER_LOCK_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/storage.h"

namespace tessera::ckpt {

// Locks a folder of checkpoints for one run. Two runs in one folder cannot damage each other's
// checkpoints, but each would delete what the other one wants to keep, and neither would know which
// is its own.
//
// In a file system: advisory locks on the folder itself and on the file ".lock" in it, which the
// system releases however the process ends; the file stays. NFS locks only files that are open for
// writing; elsewhere the folder remains locked even if the file is deleted, which Check() creates
// and locks again.
//
// In an object store: a lease, the object ".lease", which says who holds it. A thread replaces it
// several times in each period; each time on condition that nobody else has. Whoever wants it
// watches it: a holder whose lease does not change for a period, by the watcher's own clock, is
// taken for dead, and the lease is taken over, on the same condition. So is one whose process is
// known to be gone because it ran on this machine. The object stays, marked as free.
//
// Thread-safe.
class FolderLock {
 public:
  static constexpr char kFileName[] = ".lock";

  struct Options {
    // How long to wait for another holder to end: the processes of a launcher that was killed
    // notice it after a second or two. For a lease, any wait but zero lasts until it is decided.
    absl::Duration wait = absl::Seconds(10);
    // Receives one sentence when it begins to wait. May be null.
    std::function<void(const std::string&)> on_wait = nullptr;
    absl::Duration lease_period = absl::Seconds(20);
  };

  // Locks the root of the storage, which is used until the lock is destroyed. FailedPrecondition,
  // saying who it is if that is known, while another holder exists; other errors where the file
  // cannot be created or the store does not answer.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(std::unique_ptr<Storage> storage,
                                                             const Options& options);

  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  virtual ~FolderLock() = default;

  // FailedPrecondition once it is known that another run has taken the folder. Never waits for one.
  virtual absl::Status Check() const { return absl::OkStatus(); }
  // The same before something is committed: asks the store where the last answer is older than the
  // period, as after a process stood still.
  virtual absl::Status Confirm() { return Check(); }
  // See Storage::Abandon().
  virtual void Abandon() {}

  // A sentence for the user where the file system or store has no locks, so that nothing is locked;
  // else empty.
  const std::string& warning() const { return warning_; }

 protected:
  explicit FolderLock(std::string warning = "") : warning_(std::move(warning)) {}
  void set_warning(std::string warning) { warning_ = std::move(warning); }

 private:
  std::string warning_;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_FOLDER_LOCK_H_
