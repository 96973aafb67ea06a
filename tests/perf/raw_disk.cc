#include "tests/perf/raw_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "storage/aligned_buffer.h"
#include "storage/storage.h"

namespace tessera {
namespace {

constexpr uint64_t kGranuleBytes = uint64_t{64} << 20;

absl::Status Failed(const char* operation, int error) {
  return absl::UnavailableError(
      absl::StrCat("raw disk: ", operation, ": ", std::generic_category().message(error)));
}

// Transfers one block after the other, until none is left or one fails.
void Transfer(int fd, bool write, uint64_t file_bytes, AlignedBuffer* buffer,
              std::atomic<uint64_t>* next, std::atomic<int>* error) {
  const size_t block_bytes = buffer->size_bytes();
  while (*error == 0) {
    const uint64_t begin = next->fetch_add(block_bytes);
    if (begin >= file_bytes) return;
    const size_t size = std::min<uint64_t>(block_bytes, file_bytes - begin);
    for (size_t done = 0; done < size;) {
      const ssize_t n = write ? pwrite(fd, buffer->data() + done, size - done, begin + done)
                              : pread(fd, buffer->data() + done, size - done, begin + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        *error = n < 0 ? errno : EIO;
        return;
      }
      done += n;
    }
  }
}

// xorshift: data that a disk can neither compress nor deduplicate.
void FillWithNoise(AlignedBuffer* buffer, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t at = 0; at + sizeof(state) <= buffer->size_bytes(); at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(buffer->data() + at, &state, sizeof(state));
  }
}

}  // namespace

absl::StatusOr<RawDiskFile> RawDiskFile::Create(const std::string& directory, uint64_t bytes) {
  std::string path = directory + "/raw_disk_XXXXXX";
  const int fd = mkostemp(path.data(), O_DIRECT | O_CLOEXEC);
  if (fd < 0) return Failed(path.c_str(), errno);
  // Only the descriptor keeps the file: its space is freed however this process ends.
  unlink(path.c_str());
  return RawDiskFile(fd, RoundUp(bytes, kGranuleBytes));
}

absl::StatusOr<RawDiskFile> RawDiskFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) return Failed(path.c_str(), errno);
  const off_t bytes = lseek(fd, 0, SEEK_END);
  return RawDiskFile(fd, static_cast<uint64_t>(bytes) / kIoAlignmentBytes * kIoAlignmentBytes);
}

RawDiskFile::RawDiskFile(RawDiskFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

RawDiskFile::~RawDiskFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<double> RawDiskFile::WriteOnce(const RawDiskShape& shape) {
  if (ftruncate(fd_, 0) != 0) return Failed("truncate", errno);
  if (fallocate(fd_, 0, 0, static_cast<off_t>(bytes_)) != 0) return Failed("fallocate", errno);
  // The cost of freeing the old space must not enter a measurement.
  if (fsync(fd_) != 0) return Failed("fsync", errno);
  return TransferOnce(shape, /*write=*/true);
}

absl::StatusOr<double> RawDiskFile::ReadOnce(const RawDiskShape& shape) {
  return TransferOnce(shape, /*write=*/false);
}

absl::StatusOr<double> RawDiskFile::TransferOnce(const RawDiskShape& shape, bool write) {
  std::vector<AlignedBuffer> buffers;
  for (int t = 0; t < shape.threads; ++t) {
    TESSERA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(shape.block_bytes));
    FillWithNoise(&buffer, t);
    buffers.push_back(std::move(buffer));
  }
  std::atomic<uint64_t> next = 0;
  std::atomic<int> error = 0;
  const absl::Duration start = SteadyNow();
  std::vector<std::thread> threads;
  for (AlignedBuffer& buffer : buffers) {
    threads.emplace_back(Transfer, fd_, write, bytes_, &buffer, &next, &error);
  }
  for (std::thread& thread : threads) thread.join();
  if (error == 0 && write && fdatasync(fd_) != 0) error = errno;
  const double seconds = SecondsSince(start);
  if (error != 0) return Failed(write ? "write" : "read", error);
  return static_cast<double>(bytes_) / seconds;
}

absl::StatusOr<RawDiskShapes> FindRawDiskShapes(const std::string& directory, uint64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(RawDiskFile file, RawDiskFile::Create(directory, bytes));
  RawDiskShapes best;
  double best_write = 0, best_read = 0;
  for (const RawDiskShape& shape : {RawDiskShape{size_t{1} << 20, 4},
                                    {size_t{4} << 20, 2},
                                    {size_t{4} << 20, 4},
                                    {size_t{4} << 20, 8},
                                    {size_t{16} << 20, 1},
                                    {size_t{16} << 20, 2}}) {
    TESSERA_ASSIGN_OR_RETURN(const double write, file.WriteOnce(shape));
    TESSERA_ASSIGN_OR_RETURN(const double read, file.ReadOnce(shape));
    if (write > best_write) best_write = write, best.write = shape;
    if (read > best_read) best_read = read, best.read = shape;
  }
  return best;
}

}  // namespace tessera
