#ifndef TESSERA_STORAGE_OPEN_FILES_H_
#define TESSERA_STORAGE_OPEN_FILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/storage.h"

namespace tessera::internal {

// The files of one storage that are open for reading. A process may have only so many descriptors
// (ulimit -n), but a checkpoint of many ranks has more files. Therefore the files that were not
// used for the longest time are closed, and opened again when they are read.
//
// Thread-safe. Must outlive the files that Keep() returns.
class OpenFiles {
 public:
  using File = std::shared_ptr<const ReadableFile>;
  using Open = std::function<absl::StatusOr<File>()>;

  // Returns a file that reads from `opened` and, once that was closed, from what `reopen` returns.
  std::unique_ptr<ReadableFile> Keep(File opened, Open reopen);

 private:
  class KeptFile;
  struct Used {
    File file;
    uint64_t at = 0;
  };

  void Add(const KeptFile* kept, File file);
  absl::StatusOr<File> Find(const KeptFile* kept, const Open& reopen);
  void Remove(const KeptFile* kept);

  Mutex mutex_;
  uint64_t now_ ABSL_GUARDED_BY(mutex_) = 0;  // counts the uses
  std::map<const KeptFile*, Used> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::internal

#endif  // TESSERA_STORAGE_OPEN_FILES_H_
