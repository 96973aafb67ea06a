#ifndef TESSERA_STORAGE_LOCK_LOCAL_FOLDER_H_
#define TESSERA_STORAGE_LOCK_LOCAL_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/lock/folder_lock.h"
#include "storage/storage.h"

namespace tessera {

// A new folder, or file, on a local disk that gets its name when it is complete. Until then it is
// the folder NAME.unfinished-XXXXXXXX beside it, or a file in that folder. A lock file in the
// unfinished folder shows that its process is alive. If the process dies, the unfinished folder
// stays, and the next process that writes to the same name removes it. Nothing else is ever
// removed.
class LocalFolder {
 public:
  // Creates the unfinished folder. Errors, then and later, name `path` as `described`;
  // AlreadyExists if there is anything at `path`.
  static absl::StatusOr<LocalFolder> Create(const std::string& path, const std::string& described);

  // Returns the parent folder, and the new folder's present path there.
  Storage& storage() const { return *storage_; }
  const std::string& temporary() const { return temporary_; }
  std::string temporary_path() const;

  // Returns the folders that were removed.
  const std::vector<std::string>& removed() const { return removed_; }

  const std::string& name() const { return name_; }

  // Gives the folder its name, durably, and removes the lock file. After an error it does not have
  // the name, unless the message says so.
  absl::Status Publish();
  // Gives the folder's only file, instead of the folder, its name.
  absl::Status PublishFile();
  // Deletes the folder.
  void Abandon();

 private:
  LocalFolder() = default;
  absl::Status MakeTemporary();
  void RemoveAbandoned();
  absl::Status Delete(const std::string& folder);
  absl::Status Rename(const std::string& from, absl::FunctionRef<absl::Status()> complete);

  std::unique_ptr<Storage> storage_;
  std::string above_;
  std::string name_;
  std::string temporary_;
  std::unique_ptr<FolderLock> lock_;
  std::vector<std::string> removed_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_LOCK_LOCAL_FOLDER_H_
