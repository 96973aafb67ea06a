#ifndef TESSERA_STORAGE_CHECKED_CHECKED_STORAGE_H_
#define TESSERA_STORAGE_CHECKED_CHECKED_STORAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/read_only_storage.h"
#include "storage/stated_checksums.h"
#include "storage/storage.h"

namespace tessera {

// A part of a file whose CRC-32 (zlib's, as in zip archives) the file contains.
using StoredRecord = StatedChecksums::Part;

// Reads a whole record. Returns DataLoss if its contents do not match its checksum.
absl::Status CheckRecord(const ReadableFile& file, const StoredRecord& record);

// A read-only view of a storage whose files compare the data that is read with the checksums that
// they state (ReadableFile::stated_checksums()). A record is checked by the read that completes it,
// in whatever pieces it was read. If the record is damaged, this read and all later ones of it
// return DataLoss. A program that reads whole records, in pieces and on several threads, therefore
// needs no second pass.
//
// Thread-safe. Memory: about 200 bytes for each record. Cost: zlib's crc32() of the bytes that are
// read for the first time.
class CheckedStorage final : public ReadOnlyStorage {
 public:
  // If the files that matter are one file of the base, `file` is its name, and messages call the
  // root by it.
  explicit CheckedStorage(std::shared_ptr<Storage> base, std::string file = "");
  ~CheckedStorage() override;

  // Returns whether a record has all bytes from `begin` to before `end` of a file.
  bool HasChecksum(const std::string& path, uint64_t begin, uint64_t end) const;

  // Ends of ranges of a file, by their beginnings.
  using Ranges = std::map<uint64_t, uint64_t>;

  // Checks the records that do not consist of the ranges, given by path, which the caller reads.
  // Returns an error for each damaged record.
  std::vector<absl::Status> CheckOthers(const std::map<std::string, Ranges>& ranges);

  // Returns the files with archives that were written without checksums.
  std::vector<std::string> UncheckedFiles() const;

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    return base_->List(path);
  }
  std::string Describe(std::string_view path) const override {
    return base_->Describe(path.empty() ? file_ : path);
  }

 private:
  class File;
  class FileRecords;

  const std::shared_ptr<Storage> base_;
  const std::string file_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<FileRecords>> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_CHECKED_CHECKED_STORAGE_H_
