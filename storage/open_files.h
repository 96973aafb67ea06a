#ifndef TESSERA_STORAGE_OPEN_FILES_H_
#define TESSERA_STORAGE_OPEN_FILES_H_

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/storage.h"

namespace tessera::internal {

// Files that are open for reading. A process may have only so many descriptors (ulimit -n), but a
// checkpoint of many ranks has more files. Therefore those that were not used for the longest time
// are closed, and opened again when they are read. The others take half of the descriptors at most.
//
// Thread-safe. Must outlive the files that Keep() returns.
class OpenFiles {
 public:
  using File = std::shared_ptr<const ReadableFile>;
  using Open = std::function<absl::StatusOr<File>()>;

  // Those of all folders: they share the descriptors of the process.
  static OpenFiles& OfProcess();

  // Returns a file that reads from `opened` and, once that was closed, from what `reopen` returns.
  // Each of these takes so many descriptors.
  std::unique_ptr<ReadableFile> Keep(File opened, size_t descriptors, Open reopen);

 private:
  class KeptFile;
  struct Opened {
    const KeptFile* kept = nullptr;
    File file;
  };
  using List = std::list<Opened>;

  void Add(const KeptFile* kept, File file);
  absl::StatusOr<File> Find(const KeptFile* kept, const Open& reopen);
  void Remove(const KeptFile* kept);
  // Moves the file, if it is open, to those that the caller closes without the mutex.
  void Take(const KeptFile* kept, List& closed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  size_t descriptors_ ABSL_GUARDED_BY(mutex_) = 0;
  List open_ ABSL_GUARDED_BY(mutex_);  // the last one used is first
  std::map<const KeptFile*, List::iterator> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::internal

#endif  // TESSERA_STORAGE_OPEN_FILES_H_
