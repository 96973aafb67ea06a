#ifndef TESSERA_TESTS_PERF_NAIVE_FILE_H_
#define TESSERA_TESTS_PERF_NAIVE_FILE_H_

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// The simplest format that a rank can have: all its memory, as it is, in one file. No checksums, no
// index, and it fits no other topology. The destructor deletes the file.
class NaiveFile {
 public:
  NaiveFile(std::string path, std::vector<std::span<std::byte>> buffers)
      : path_(std::move(path)), buffers_(std::move(buffers)) {}
  NaiveFile(const NaiveFile&) = delete;
  NaiveFile& operator=(const NaiveFile&) = delete;
  ~NaiveFile();

  // Writes the buffers and syncs the file. Returns bytes per second.
  absl::StatusOr<double> Save() const;
  // Reads the file back into the buffers past the page cache, from which a restarted job has
  // nothing. Returns bytes per second.
  absl::StatusOr<double> Load() const;

 private:
  const std::string path_;
  const std::vector<std::span<std::byte>> buffers_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_PERF_NAIVE_FILE_H_
