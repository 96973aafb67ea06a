#include "storage/posix_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/file_calls.h"
#include "base/no_space.h"
#include "base/status_macros.h"
#include "storage/checks.h"

namespace tessera::internal {
namespace {

absl::Status ClosedStatus(std::string_view operation, const std::string& name) {
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(operation), " ", name, ": the file is closed"));
}

}  // namespace

PosixWritableFile::PosixWritableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                                     const DualFileOptions& options, BouncePool* bounce)
    : name_(std::move(name)), file_(std::move(buffered), std::move(direct), options, bounce) {}

absl::Status PosixWritableFile::Claim(uint64_t offset_bytes, uint64_t size_bytes) {
  if (!DualFile::Fits(offset_bytes, size_bytes)) return absl::OkStatus();  // the write is refused
  const MutexLock lock(&claims_mutex_);
  return claimed_.Claim(name_, offset_bytes, size_bytes);
}

absl::Status PosixWritableFile::WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) {
  if (absl::Status status = Claim(offset_bytes, data.size()); !status.ok()) return status;
  return FinishWriteAt(nullptr, offset_bytes, data);
}

std::unique_ptr<PendingIo> PosixWritableFile::StartWriteAt(uint64_t offset_bytes,
                                                           std::span<const std::byte> data,
                                                           const ChunkChecksums& checksums) {
  ReaderMutexLock lock(&mutex_);
  if (closed_) return WritableFile::StartWriteAt(offset_bytes, data, checksums);
  if (absl::Status status = Claim(offset_bytes, data.size()); !status.ok()) {
    return WaitToDo([status] { return status; });
  }
  return WaitToDo([this, offset_bytes, data, started = file_.StartWrite(offset_bytes, data)] {
    return FinishWriteAt(started.get(), offset_bytes, data);
  });
}

absl::Status PosixWritableFile::FinishWriteAt(RingTransfer* started, uint64_t offset_bytes,
                                              std::span<const std::byte> data) {
  ReaderMutexLock lock(&mutex_);
  if (closed_) return ClosedStatus("WriteAt", name_);
  if (data.empty()) return absl::OkStatus();
  if (const int error = file_.FinishWrite(started, offset_bytes, data); error != 0) {
    const absl::Status status = Named("WriteAt", name_, ErrnoStatus(error));
    return WithMessage(status, absl::StrCat(status.message(), " (", data.size(),
                                            " bytes at offset ", offset_bytes, ")"));
  }
  return absl::OkStatus();
}

absl::Status PosixWritableFile::CutToLength() {
  struct stat info;
  if (fstat(file_.fd(), &info) != 0) return Named("Truncate", name_, ErrnoStatus(errno));
  const MutexLock lock(&claims_mutex_);
  const auto length_bytes = static_cast<off_t>(claimed_.end_bytes());
  if (info.st_size <= length_bytes) return absl::OkStatus();
  while (ftruncate(file_.fd(), length_bytes) != 0) {
    if (errno != EINTR) return Named("Truncate", name_, ErrnoStatus(errno));
  }
  return absl::OkStatus();
}

absl::Status PosixWritableFile::Sync() {
  {
    WriterMutexLock lock(&mutex_);
    if (closed_) return ClosedStatus("Sync", name_);
    if (!sync_status_.ok()) return sync_status_;
    if (absl::Status status = CutToLength(); !status.ok()) return status;
  }
  // Not locked, so that writes can continue meanwhile.
  const absl::Status synced = SyncContents(file_.fd());
  WriterMutexLock lock(&mutex_);
  if (!synced.ok()) sync_status_ = Named("Sync", name_, synced);
  return sync_status_;
}

absl::Status PosixWritableFile::Close() {
  WriterMutexLock lock(&mutex_);
  if (closed_) return ClosedStatus("Close", name_);
  closed_ = true;
  const absl::Status status = CutToLength();
  const int error = file_.Close();
  TESSERA_RETURN_IF_ERROR(status);
  return Named("Close", name_, ErrnoStatus(error));
}

PosixReadableFile::PosixReadableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                                     const DualFileOptions& options, BouncePool* bounce,
                                     uint64_t size_bytes)
    : name_(std::move(name)),
      file_(std::move(buffered), std::move(direct), options, bounce),
      size_bytes_(size_bytes) {}

std::unique_ptr<PendingIo> PosixReadableFile::StartReadAt(uint64_t offset_bytes,
                                                          std::span<std::byte> out,
                                                          bool /*original*/) const {
  std::unique_ptr<RingTransfer> started;
  if (Holds(offset_bytes, out.size())) started = file_.StartRead(offset_bytes, out);
  return WaitToDo([this, offset_bytes, out, started = std::move(started)] {
    return FinishReadAt(started.get(), offset_bytes, out);
  });
}

absl::Status PosixReadableFile::FinishReadAt(RingTransfer* started, uint64_t offset_bytes,
                                             std::span<std::byte> out) const {
  if (out.empty() && offset_bytes <= size_bytes_) return absl::OkStatus();
  if (!Holds(offset_bytes, out.size())) {
    return ShortReadStatus(name_, offset_bytes, out.size(), size_bytes_);
  }
  size_t read_bytes = 0;
  if (const int error = file_.FinishRead(started, offset_bytes, out, &read_bytes); error != 0) {
    const absl::Status status = Named("ReadAt", name_, ReadErrnoStatus(error));
    return absl::Status(status.code(), absl::StrCat(status.message(), " (", out.size(),
                                                    " bytes at offset ", offset_bytes, ")"));
  }
  if (read_bytes < out.size()) {
    return ShortReadStatus(name_, offset_bytes, out.size(), offset_bytes + read_bytes);
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
