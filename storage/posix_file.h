#ifndef TESSERA_STORAGE_POSIX_FILE_H_
#define TESSERA_STORAGE_POSIX_FILE_H_

// The files of a PosixStorage.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "storage/posix_io.h"
#include "storage/storage.h"
#include "storage/written_ranges.h"

namespace tessera::internal {

class PosixWritableFile final : public WritableFile {
 public:
  // `name` is used in messages; the descriptors are as in DualFile. Reserved space and the rest of
  // the last block behind the last byte written are cut off.
  PosixWritableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                    const DualFileOptions& options, BouncePool* bounce);

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override;
  std::unique_ptr<PendingIo> StartWriteAt(uint64_t offset_bytes, std::span<const std::byte> data,
                                          const ChunkChecksums& checksums) override;
  absl::Status Sync() override;
  absl::Status Close() override;

 private:
  absl::Status Claim(uint64_t offset_bytes, uint64_t size_bytes);
  // Finishes a write; `started` as in DualFile.
  absl::Status FinishWriteAt(RingTransfer* started, uint64_t offset_bytes,
                             std::span<const std::byte> data);
  absl::Status CutToLength() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  // Held shared by writes, exclusively by operations that change the length.
  SharedMutex mutex_;
  DualFile file_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // The kernel reports a failed write-back once; a second fsync() would report success.
  absl::Status sync_status_ ABSL_GUARDED_BY(mutex_);
  Mutex claims_mutex_;
  WrittenRanges claimed_ ABSL_GUARDED_BY(claims_mutex_);
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                    const DualFileOptions& options, BouncePool* bounce, uint64_t size_bytes);

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    return FinishReadAt(nullptr, offset_bytes, out);
  }
  std::unique_ptr<PendingIo> StartReadAt(uint64_t offset_bytes, std::span<std::byte> out,
                                         bool original) const override;
  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  bool Holds(uint64_t offset_bytes, size_t size) const {
    return offset_bytes <= size_bytes_ && size <= size_bytes_ - offset_bytes;
  }
  absl::Status FinishReadAt(RingTransfer* started, uint64_t offset_bytes,
                            std::span<std::byte> out) const;

  const std::string name_;
  DualFile file_;
  const uint64_t size_bytes_;
};

}  // namespace tessera::internal

#endif  // TESSERA_STORAGE_POSIX_FILE_H_
