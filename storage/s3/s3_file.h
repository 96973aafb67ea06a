#ifndef TESSERA_STORAGE_S3_S3_FILE_H_
#define TESSERA_STORAGE_S3_S3_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/aligned_buffer.h"
#include "storage/s3/s3_client.h"
#include "storage/storage.h"
#include "storage/written_ranges.h"

namespace tessera::s3 {

// The limits of S3.
inline constexpr uint64_t kMinPartBytes = uint64_t{5} << 20;
inline constexpr uint64_t kMaxParts = 10'000;
inline constexpr uint64_t kMaxObjectBytes = uint64_t{5} << 40;

// Parts that a thread has in flight. More than a few such threads make no store faster.
inline constexpr uint64_t kPartsAtOnce = 4;

// Returns the smallest size that is at least `part_bytes` and cuts `size_hint_bytes` into at most
// kMaxParts parts.
uint64_t ChoosePartBytes(uint64_t part_bytes, uint64_t size_hint_bytes);

// The memory for parts that are not complete, shared by the files of a storage. Thread-safe.
class PartMemory {
 public:
  // Buffers of `buffer_bytes` are kept for the next part.
  PartMemory(uint64_t limit_bytes, uint64_t buffer_bytes)
      : limit_bytes_(limit_bytes), buffer_bytes_(buffer_bytes) {}

  // Counts bytes against the limit. Waits while too little is left and an upload, which will return
  // some, is running. Returns false if too little is left and no upload is running.
  bool Take(uint64_t bytes);
  // Announces that counted bytes, whose part is being uploaded, will be returned.
  void BeginUpload(uint64_t bytes);
  void EndUpload(uint64_t bytes);
  void Return(uint64_t bytes);

  // Returns a buffer with unspecified contents.
  absl::StatusOr<AlignedBuffer> TakeBuffer(uint64_t bytes);
  void ReturnBuffer(AlignedBuffer buffer);

  uint64_t limit_bytes() const { return limit_bytes_; }

 private:
  const uint64_t limit_bytes_;
  const uint64_t buffer_bytes_;
  Mutex mutex_;
  CondVar returned_;
  uint64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t uploading_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<AlignedBuffer> idle_ ABSL_GUARDED_BY(mutex_);
};

// An object being written.
//
// The file is cut into parts of one size. A write that covers whole parts uploads them from the
// caller's memory, in the caller's thread, up to kPartsAtOnce of them over a connection each. The
// rest is copied into memory of its part, which is uploaded by the write that completes it. Sync()
// uploads the remaining parts, with zeros where nothing was written, and makes the object, with one
// request if no part was uploaded before. Later writes are FailedPrecondition.
class S3WritableFile final : public WritableFile {
 public:
  S3WritableFile(std::string name, std::string key, uint64_t part_bytes, S3Client& client,
                 PartMemory& memory);
  // Aborts the upload unless the object was made.
  ~S3WritableFile() override;

  absl::Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) override;
  absl::Status WriteCheckedAt(uint64_t offset_bytes, std::span<const std::byte> data,
                              const ChunkChecksums& checksums) override;
  absl::Status Sync() override { return Finish("Sync", /*close=*/false); }
  absl::Status Close() override { return Finish("Close", /*close=*/true); }

 private:
  // A part that is not uploaded yet, and the bytes that were written.
  struct Part {
    AlignedBuffer buffer;
    uint64_t taken_bytes = 0;    // counted by PartMemory
    WrittenRanges written = {};  // copied into the buffer; counted from the part's begin
    bool uploaded = false;       // or being uploaded
  };

  absl::Status CheckOpen(const char* operation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRange(uint64_t offset_bytes, uint64_t size_bytes) const;
  // Uploads whole parts from the beginning of the data, up to a part that was written to before.
  // Returns their number.
  absl::StatusOr<uint64_t> WriteWholeParts(uint64_t index, std::span<const std::byte> data,
                                           const ChunkChecksums& checksums);
  absl::Status WritePart(uint64_t index, uint64_t begin, std::span<const std::byte> data);
  // Copies into the part's memory. Returns whether the part is now complete, and then marks it as
  // uploaded.
  absl::StatusOr<bool> AddToPart(uint64_t index, uint64_t begin, std::span<const std::byte> data);
  // Takes the memory of a part that is marked as uploaded, with zeros where nothing was written.
  Part TakePart(uint64_t index, uint64_t size_bytes);
  using SendBytes = std::function<absl::Status(std::span<const std::byte>)>;
  absl::Status SendPart(uint64_t index, uint64_t size_bytes, const SendBytes& send);
  absl::Status UploadBuffered(uint64_t index, uint64_t size_bytes);
  absl::Status Upload(std::span<const S3Client::PartBody> bodies);
  absl::Status UploadOne(uint64_t index, std::span<const std::byte> data);
  absl::StatusOr<S3Client::Upload> StartedUpload();
  // Makes the object, unless it is made.
  absl::Status Finish(const char* operation, bool close);
  absl::Status MakeObject();
  absl::Status UploadRest(uint64_t size_bytes);
  absl::Status PutWhole(uint64_t size_bytes);
  void Release(Part part);

  const std::string name_;
  const std::string key_;
  const uint64_t part_bytes_;
  S3Client& client_;
  PartMemory& memory_;

  Mutex start_mutex_;  // held while the upload is created
  mutable Mutex mutex_;
  std::optional<S3Client::Upload> upload_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Part> parts_ ABSL_GUARDED_BY(mutex_);  // by index, from 0
  std::vector<UploadedPart> uploaded_ ABSL_GUARDED_BY(mutex_);
  WrittenRanges claimed_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  bool made_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

class S3ReadableFile final : public ReadableFile {
 public:
  S3ReadableFile(std::string name, std::string key, S3Client::ObjectInfo info, S3Client& client);

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override;
  uint64_t size_bytes() const override { return info_.size_bytes; }

 private:
  const std::string name_;
  const std::string key_;
  const S3Client::ObjectInfo info_;
  S3Client& client_;
};

}  // namespace tessera::s3

#endif  // TESSERA_STORAGE_S3_S3_FILE_H_
