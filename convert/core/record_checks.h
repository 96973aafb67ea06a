#ifndef TESSERA_CONVERT_CORE_RECORD_CHECKS_H_
#define TESSERA_CONVERT_CORE_RECORD_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/read_only_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Part of a file of which the file has the CRC-32: zlib's, as in zip archives.
using StoredRecord = StatedChecksums::Part;

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// DataLoss where the contents of a record are not those of its checksum. Reads all of it.
absl::Status CheckRecord(const ReadableFile& file, const StoredRecord& record);

// A read-only view of a storage whose files compare what is read of them with the checksums that
// they state (ReadableFile::stated_checksums()). A record is checked by the read
// after which all of it has been read, whatever the reads were; this read, and all later ones of
// the record, are DataLoss where it is damaged. So a program that reads whole records, in pieces
// and on several threads, needs no second pass.
//
// Thread-safe. Memory: about 200 bytes for each record. Cost: zlib's crc32() of the bytes that are
// read for the first time.
class CheckedStorage final : public ReadOnlyStorage {
 public:
  explicit CheckedStorage(std::shared_ptr<Storage> base);
  ~CheckedStorage() override;

  // Whether a record has all of these bytes.
  bool HasChecksum(const std::string& path, const ByteRange& range) const;

  // Checks the records that do not consist of the ranges, by path, which the caller reads as well.
  // Returns an error for each record that is damaged.
  std::vector<absl::Status> CheckOthers(
      const std::map<std::string, std::vector<ByteRange>>& ranges);

  // Files with archives that were written without checksums.
  std::vector<std::string> UncheckedFiles() const;

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<std::string>> List(std::string_view path) override {
    return base_->List(path);
  }
  std::string Describe(std::string_view path) const override { return base_->Describe(path); }

 private:
  class File;
  class FileRecords;

  const std::shared_ptr<Storage> base_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<FileRecords>> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_RECORD_CHECKS_H_
