#ifndef TESSERA_STORAGE_LOCK_FOLDER_LOCK_H_
#define TESSERA_STORAGE_LOCK_FOLDER_LOCK_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/storage.h"

namespace tessera {

// The lock of a process on a folder that it fills, such as a run's folder of checkpoints. Two runs
// in one folder would each delete what the other one wants to keep, and neither would know which
// files are its own.
//
// In a file system: advisory locks on the folder itself and on the file ".lock" in it. When the
// process ends, even by a crash, the system releases them; the file stays. On NFS, only the file
// can be locked. Elsewhere the folder remains locked even if the file is deleted, and Confirm()
// creates and locks the file again. A forked child does not have the lock, and its Check() says so.
//
// In an object store: a lease, the object ".lease", which names its holder. A thread replaces the
// lease several times in each period, on condition that nobody else has. Other processes that want
// the lease watch it. If it does not change for a period, by the watcher's own clock, the holder
// counts as dead. The watcher then takes the lease over, on the same condition. A lease is also
// taken over if its process ran on this machine and is gone. The object stays, marked as free.
//
// Thread-safe.
class FolderLock {
 public:
  static constexpr char kFileName[] = ".lock";

  struct Options {
    // How long to wait for another holder to end, since the processes of a killed launcher notice
    // it after a second or two. For a lease, any wait but zero lasts until it is known whether the
    // holder is alive.
    absl::Duration wait = absl::Seconds(10);
    // Receives one sentence when the wait begins. May be null.
    std::function<void(const std::string&)> on_wait = nullptr;
    absl::Duration lease_period = absl::Seconds(20);
  };

  // Locks the root of the storage, which is used until the lock is destroyed. FailedPrecondition,
  // naming the holder if it is known, while another one exists; other errors if the file cannot be
  // created, the store does not answer, or no thread can be started that renews the lease.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Acquire(std::unique_ptr<Storage> storage,
                                                             const Options& options);

  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  virtual ~FolderLock() = default;

  // Returns FailedPrecondition once it is known that another process has taken the folder. Never
  // waits, even for a file server that does not answer.
  virtual absl::Status Check() const { return absl::OkStatus(); }
  // Checks before something is committed. Asks the file system, or the store if its last answer is
  // older than the period, as after a process stood still.
  virtual absl::Status Confirm() { return Check(); }
  // Calls Storage::Abandon().
  virtual void Abandon() {}

  // Returns a sentence for the user if nothing is locked, because the file system or store has no
  // locks; otherwise empty.
  const std::string& warning() const { return warning_; }

 protected:
  explicit FolderLock(std::string warning = "") : warning_(std::move(warning)) {}
  void set_warning(std::string warning) { warning_ = std::move(warning); }

 private:
  std::string warning_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_LOCK_FOLDER_LOCK_H_
