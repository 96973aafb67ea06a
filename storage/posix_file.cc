#include "storage/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/errno_status.h"
#include "base/file_calls.h"
#include "base/status_macros.h"
#include "storage/checks.h"

namespace tessera::internal {
namespace {

absl::Status ClosedStatus(std::string_view operation, const std::string& name) {
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(operation), " ", name, ": the file is closed"));
}

}  // namespace

BouncePool::Lease::~Lease() {
  if (pool_ == nullptr) return;
  MutexLock lock(&pool_->mutex_);
  pool_->idle_.push_back(std::move(buffer_));
  pool_->returned_.NotifyOne();
}

absl::StatusOr<BouncePool::Lease> BouncePool::Acquire() {
  {
    MutexLock lock(&mutex_);
    while (idle_.empty() && unallocated_ == 0) returned_.Wait(&mutex_);
    if (!idle_.empty()) {
      Lease lease(this, std::move(idle_.back()));
      idle_.pop_back();
      return lease;
    }
    --unallocated_;
  }
  absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(buffer_bytes_);
  if (!buffer.ok()) {
    MutexLock lock(&mutex_);
    ++unallocated_;
    returned_.NotifyOne();
    return buffer.status();
  }
  return Lease(this, *std::move(buffer));
}

size_t DirectMemoryAlignment(int direct_fd) {
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (statx(direct_fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0 && info.stx_dio_mem_align > 0 &&
      kIoAlignmentBytes % info.stx_dio_mem_align == 0) {
    return info.stx_dio_mem_align;
  }
#endif
  return kIoAlignmentBytes;
}

DualFile::DualFile(ScopedFd buffered, ScopedFd direct, const DualFileOptions& options,
                   BouncePool* bounce)
    : buffered_(std::move(buffered)),
      direct_(std::move(direct)),
      options_(options),
      bounce_(bounce),
      direct_usable_(direct_.valid()) {}

bool DualFile::Fits(uint64_t offset_bytes, uint64_t size_bytes) {
  constexpr uint64_t kMax = std::numeric_limits<off_t>::max() - (kIoAlignmentBytes - 1);
  return offset_bytes <= kMax && size_bytes <= kMax - offset_bytes;
}

DualFile::Blocks DualFile::BlocksOf(uint64_t offset_bytes, size_t size_bytes) {
  const uint64_t begin =
      std::min<uint64_t>(RoundUp(offset_bytes, kIoAlignmentBytes) - offset_bytes, size_bytes);
  const uint64_t end =
      std::max(RoundDown(offset_bytes + size_bytes, kIoAlignmentBytes), offset_bytes + begin);
  return {begin, end - offset_bytes};
}

std::unique_ptr<RingTransfer> DualFile::Start(bool write, uint64_t offset_bytes,
                                              std::span<const std::byte> memory) const {
  if (!options_.io_uring || !Fits(offset_bytes, memory.size())) return nullptr;
  if (!(write ? direct() : ReadsDirectly(memory.size()))) return nullptr;
  const Blocks blocks = BlocksOf(offset_bytes, memory.size());
  if (blocks.size() == 0 || !IsAligned(memory.data() + blocks.begin)) return nullptr;
  return RingTransfer::Start(write, direct_.get(), offset_bytes + blocks.begin,
                             memory.subspan(blocks.begin, blocks.size()));
}

std::unique_ptr<RingTransfer> DualFile::StartWrite(uint64_t offset_bytes,
                                                   std::span<const std::byte> data) const {
  return Start(/*write=*/true, offset_bytes, data);
}

std::unique_ptr<RingTransfer> DualFile::StartRead(uint64_t offset_bytes,
                                                  std::span<std::byte> out) const {
  return Start(/*write=*/false, offset_bytes, out);
}

int DualFile::Finish(RingTransfer* started, uint64_t offset_bytes, size_t size_bytes,
                     size_t* done_bytes) const {
  *done_bytes = 0;
  if (started == nullptr) return 0;
  const int result =
      options_.calls.ring_result(size_bytes, static_cast<off_t>(offset_bytes), started->Wait());
  // A short transfer is continued at a block, where it can be direct again.
  if (result >= 0) *done_bytes = RoundDown(result, kIoAlignmentBytes);
  const bool was_refused = result == -EINTR || result == -EAGAIN || result == -EINVAL ||
                           result == -EOPNOTSUPP || result == -ECANCELED;
  return result >= 0 || was_refused ? 0 : -result;
}

int DualFile::FinishWrite(RingTransfer* started, uint64_t offset_bytes,
                          std::span<const std::byte> data) {
  if (!Fits(offset_bytes, data.size())) return EFBIG;
  if (started == nullptr && !direct()) return WriteBuffered(offset_bytes, data);
  const Blocks blocks = BlocksOf(offset_bytes, data.size());
  size_t done_bytes = 0;
  int error = Finish(started, offset_bytes + blocks.begin, blocks.size(), &done_bytes);
  if (error == 0) error = WritePart(offset_bytes, data.first(blocks.begin));
  if (error == 0) {
    const size_t from = blocks.begin + done_bytes;
    error = WriteBlocks(offset_bytes + from, data.subspan(from, blocks.end - from));
  }
  if (error == 0) error = WritePart(offset_bytes + blocks.end, data.subspan(blocks.end));
  return error;
}

int DualFile::WriteBuffered(uint64_t offset_bytes, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = options_.calls.pwrite(fd(), data.data(), data.size(), offset_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return EIO;
    offset_bytes += n;
    data = data.subspan(n);
  }
  return 0;
}

int DualFile::WriteDirect(uint64_t offset_bytes, std::span<const std::byte> blocks,
                          size_t* done_bytes) {
  *done_bytes = 0;
  while (*done_bytes < blocks.size()) {
    const ssize_t n =
        options_.calls.pwrite(direct_.get(), blocks.data() + *done_bytes,
                              blocks.size() - *done_bytes, offset_bytes + *done_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL) direct_usable_.store(false, std::memory_order_relaxed);
    if (n < 0) return errno;
    // A short transfer may end inside a block, which is written again from its begin. Where not
    // even one fits, the disk is full.
    if (n < kIoAlignmentBytes) return ENOSPC;
    *done_bytes += RoundDown(n, kIoAlignmentBytes);
  }
  return 0;
}

int DualFile::WriteBlocks(uint64_t offset_bytes, std::span<const std::byte> blocks) {
  if (!blocks.empty() && direct()) {
    if (!IsAligned(blocks.data())) return WriteBounced(offset_bytes, blocks);
    size_t done_bytes = 0;
    const int error = WriteDirect(offset_bytes, blocks, &done_bytes);
    if (error != EINVAL) return error;
    offset_bytes += done_bytes;
    blocks = blocks.subspan(done_bytes);
  }
  return WriteBuffered(offset_bytes, blocks);
}

int DualFile::WriteBounced(uint64_t offset_bytes, std::span<const std::byte> blocks) {
  absl::StatusOr<BouncePool::Lease> lease = bounce_->Acquire();
  alignas(kIoAlignmentBytes) std::array<std::byte, kIoAlignmentBytes> block;  // without a lease
  const std::span<std::byte> buffer = lease.ok() ? lease->span() : std::span<std::byte>(block);
  while (!blocks.empty()) {
    const std::span<std::byte> chunk = buffer.first(std::min(buffer.size(), blocks.size()));
    std::memcpy(chunk.data(), blocks.data(), chunk.size());
    if (const int error = WriteBlocks(offset_bytes, chunk); error != 0) return error;
    offset_bytes += chunk.size();
    blocks = blocks.subspan(chunk.size());
  }
  return 0;
}

int DualFile::WritePart(uint64_t offset_bytes, std::span<const std::byte> data) {
  if (data.empty()) return 0;
  const MutexLock lock(&partial_mutex_);
  if (!direct()) return WriteBuffered(offset_bytes, data);
  const uint64_t begin = RoundDown(offset_bytes, kIoAlignmentBytes);
  PartialBlock& block = partial_[begin];
  if (block.written_bytes == 0) {
    absl::StatusOr<AlignedBuffer> bytes = AlignedBuffer::Allocate(kIoAlignmentBytes);
    if (!bytes.ok()) return ENOMEM;
    block.bytes = *std::move(bytes);
  }
  std::memcpy(block.bytes.data() + (offset_bytes - begin), data.data(), data.size());
  block.written_bytes += data.size();
  size_t done_bytes = 0;
  const int error = WriteDirect(begin, block.bytes.span(), &done_bytes);
  if (error == EINVAL) return WriteBuffered(offset_bytes, data);
  if (block.written_bytes == kIoAlignmentBytes) partial_.erase(begin);
  return error;
}

int DualFile::FinishRead(RingTransfer* started, uint64_t offset_bytes, std::span<std::byte> out,
                         size_t* read_bytes) const {
  *read_bytes = 0;
  if (!Fits(offset_bytes, out.size())) return EFBIG;
  const Blocks blocks = BlocksOf(offset_bytes, out.size());
  size_t done_bytes = 0;
  int error = Finish(started, offset_bytes + blocks.begin, blocks.size(), &done_bytes);
  if (error != 0) return error;
  if (blocks.size() == 0 || !ReadsDirectly(out.size()))
    return ReadFrom(fd(), offset_bytes, out, read_bytes);
  if (!IsAligned(out.data() + blocks.begin)) return ReadBounced(offset_bytes, out, read_bytes);

  // Each part continues only if the one before was filled: a short one means the file's end.
  error = ReadFrom(fd(), offset_bytes, out.first(blocks.begin), read_bytes);
  if (error != 0 || *read_bytes < blocks.begin) return error;
  *read_bytes += done_bytes;
  size_t part_bytes = 0;
  error = ReadDirect(offset_bytes + *read_bytes, out.subspan(*read_bytes, blocks.end - *read_bytes),
                     &part_bytes);
  *read_bytes += part_bytes;
  if (error != 0 || *read_bytes < blocks.end) return error;
  error = ReadFrom(fd(), offset_bytes + blocks.end, out.subspan(blocks.end), &part_bytes);
  *read_bytes += part_bytes;
  return error;
}

int DualFile::ReadFrom(int fd, uint64_t offset_bytes, std::span<std::byte> out,
                       size_t* read_bytes) const {
  *read_bytes = 0;
  while (*read_bytes < out.size()) {
    const ssize_t n = options_.calls.pread(fd, out.data() + *read_bytes, out.size() - *read_bytes,
                                           offset_bytes + *read_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return 0;
    *read_bytes += n;
    // The next direct call would be misaligned; the caller continues through the cache.
    if (fd == direct_.get() && n % kIoAlignmentBytes != 0) return 0;
  }
  return 0;
}

int DualFile::ReadDirect(uint64_t offset_bytes, std::span<std::byte> out,
                         size_t* read_bytes) const {
  const int error = ReadFrom(direct_.get(), offset_bytes, out, read_bytes);
  if (error == EINVAL) direct_usable_.store(false, std::memory_order_relaxed);
  if (error != 0 && error != EINVAL) return error;
  // The remainder after direct I/O: the file's last partial block, or everything after a refusal.
  size_t rest_bytes = 0;
  const int rest_error =
      ReadFrom(fd(), offset_bytes + *read_bytes, out.subspan(*read_bytes), &rest_bytes);
  *read_bytes += rest_bytes;
  return rest_error;
}

int DualFile::ReadBounced(uint64_t offset_bytes, std::span<std::byte> out,
                          size_t* read_bytes) const {
  absl::StatusOr<BouncePool::Lease> lease = bounce_->Acquire();
  if (!lease.ok()) return ReadFrom(fd(), offset_bytes, out, read_bytes);
  const uint64_t end_bytes = offset_bytes + out.size();
  // Whole blocks around the range, one bounce buffer at a time.
  for (uint64_t at = RoundDown(offset_bytes, kIoAlignmentBytes); at < end_bytes;) {
    const size_t chunk_bytes =
        std::min(lease->span().size(), RoundUp(end_bytes, kIoAlignmentBytes) - at);
    size_t filled_bytes = 0;
    const int error = ReadDirect(at, lease->span().first(chunk_bytes), &filled_bytes);
    if (error != 0) return error;
    const uint64_t begin = std::max(at, offset_bytes);
    const uint64_t end = std::min(at + filled_bytes, end_bytes);
    if (begin < end) {
      std::memcpy(out.data() + (begin - offset_bytes), lease->span().data() + (begin - at),
                  end - begin);
      *read_bytes += end - begin;
    }
    if (filled_bytes < chunk_bytes) return 0;
    at += chunk_bytes;
  }
  return 0;
}

int DualFile::Close() {
  const int direct_error = direct_.Close();
  const int buffered_error = buffered_.Close();
  return direct_error != 0 ? direct_error : buffered_error;
}

PosixWritableFile::PosixWritableFile(std::string name, ScopedFd buffered, ScopedFd direct,
                                     const DualFileOptions& options, BouncePool* bounce)
    : name_(std::move(name)), file_(std::move(buffered), std::move(direct), options, bounce) {}

absl::Status PosixWritableFile::Claim(uint64_t offset_bytes, uint64_t size_bytes) {
  if (!DualFile::Fits(offset_bytes, size_bytes)) return absl::OkStatus();  // the write is refused
  const MutexLock lock(&claims_mutex_);
  return claimed_.Claim(name_, offset_bytes, size_bytes);
}

absl::Status PosixWritableFile::WriteAt(uint64_t offset_bytes, std::span<const std::byte> data) {
  TESSERA_RETURN_IF_ERROR(Claim(offset_bytes, data.size()));
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
    TESSERA_RETURN_IF_ERROR(CutToLength());
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
    return WithMessage(status, absl::StrCat(status.message(), " (", out.size(), " bytes at offset ",
                                            offset_bytes, ")"));
  }
  if (read_bytes < out.size()) {
    return ShortReadStatus(name_, offset_bytes, out.size(), offset_bytes + read_bytes);
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
