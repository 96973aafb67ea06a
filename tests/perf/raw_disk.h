#ifndef TESSERA_TESTS_PERF_RAW_DISK_H_
#define TESSERA_TESTS_PERF_RAW_DISK_H_

// Measurement of the rate of the disk under a directory, the limit with which checkpoint I/O is
// compared. Measure both in the same run, since disks and the load on them vary.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The shape of raw I/O: `threads` threads, each with one transfer of `block_bytes` (a multiple of
// 4096) in flight.
struct RawDiskShape {
  size_t block_bytes = size_t{4} << 20;
  int threads = 2;
};

// A file that is read and written with direct I/O from front to back. Errors: those of the system,
// Unavailable.
class RawDiskFile {
 public:
  // Creates an unnamed file in a directory, which vanishes when the process ends; `bytes` is
  // rounded up to a multiple of 64 MiB.
  static absl::StatusOr<RawDiskFile> Create(const std::string& directory, uint64_t bytes);
  // Opens an existing file to be read, as far as it consists of whole blocks of 4096 bytes.
  static absl::StatusOr<RawDiskFile> Open(const std::string& path);
  RawDiskFile(RawDiskFile&& other) noexcept;
  RawDiskFile& operator=(RawDiskFile&&) = delete;
  ~RawDiskFile();

  uint64_t bytes() const { return bytes_; }

  // Rewrites the file, fdatasync included, and returns bytes per second. Space is reserved before
  // the clock starts. The data cannot be compressed.
  absl::StatusOr<double> WriteOnce(const RawDiskShape& shape);

  // Reads the whole file and returns bytes per second. Precondition: WriteOnce(), or opened.
  absl::StatusOr<double> ReadOnce(const RawDiskShape& shape);

 private:
  RawDiskFile(int fd, uint64_t bytes) : fd_(fd), bytes_(bytes) {}
  absl::StatusOr<double> TransferOnce(const RawDiskShape& shape, bool write);

  int fd_;
  const uint64_t bytes_;
};

// The shapes with which this disk was fastest.
struct RawDiskShapes {
  RawDiskShape write, read;
};

// Writes and reads a file of `bytes` bytes once with each of a few shapes.
absl::StatusOr<RawDiskShapes> FindRawDiskShapes(const std::string& directory, uint64_t bytes);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_RAW_DISK_H_
