#ifndef TESSERA_TESTS_PERF_RAW_DISK_H_
#define TESSERA_TESTS_PERF_RAW_DISK_H_

// The measured rate of the disk under a directory: the limit with which checkpoint I/O is compared.
// It must be measured in the same run, since disks and the load on them vary.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// `threads` threads, each with one transfer of `block_bytes` in flight (a multiple of 4096).
struct RawDiskShape {
  size_t block_bytes = size_t{4} << 20;
  int threads = 2;
};

// An unnamed file in a directory, read and written with direct I/O from front to back; it vanishes
// when the process ends. Errors: those of the system, Unavailable.
class RawDiskFile {
 public:
  // `bytes` is rounded up to a multiple of 64 MiB.
  static absl::StatusOr<RawDiskFile> Create(const std::string& directory, uint64_t bytes);
  RawDiskFile(RawDiskFile&& other) noexcept;
  RawDiskFile& operator=(RawDiskFile&&) = delete;
  ~RawDiskFile();

  uint64_t bytes() const { return bytes_; }

  // Rewrites the file, fdatasync included, and returns bytes per second. Space is reserved before
  // the clock starts. The data cannot be compressed.
  absl::StatusOr<double> WriteOnce(const RawDiskShape& shape);

  // Reads the whole file and returns bytes per second. Precondition: WriteOnce().
  absl::StatusOr<double> ReadOnce(const RawDiskShape& shape);

 private:
  RawDiskFile(int fd, uint64_t bytes) : fd_(fd), bytes_(bytes) {}
  absl::StatusOr<double> TransferOnce(const RawDiskShape& shape, bool write);

  int fd_;
  const uint64_t bytes_;
};

struct RawDiskRate {
  RawDiskShape shape;
  double bytes_per_s = 0;
};

struct RawDiskOptions {
  std::string directory;
  uint64_t bytes = 1'500'000'000;
  // Each is tried once; the best one for writing and the best one for reading are then repeated.
  std::vector<RawDiskShape> shapes = {{size_t{1} << 20, 4},
                                      {size_t{4} << 20, 2},
                                      {size_t{4} << 20, 4},
                                      {size_t{16} << 20, 1},
                                      {size_t{16} << 20, 2}};
  int repeats = 3;
};

struct RawDiskRates {
  RawDiskRate write, read;                       // the best shape's median over all of its runs
  std::vector<RawDiskRate> all_write, all_read;  // one run each, in the order of the options
};

// Takes about (shapes + repeats) times the time to write and to read the file.
absl::StatusOr<RawDiskRates> MeasureRawDisk(const RawDiskOptions& options);

// The median; the mean of the two middle values for an even number. Precondition: not empty.
double Median(std::vector<double> values);

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_RAW_DISK_H_
