#ifndef TESSERA_MODELS_LLMC_FILES_FILE_H_
#define TESSERA_MODELS_LLMC_FILES_FILE_H_

// Bytes of llm.c model files: a header of 256 little-endian int32, then values of one type.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/replace_file.h"

namespace tessera {

using LlmcHeader = std::array<int32_t, 256>;
inline constexpr int64_t kLlmcHeaderBytes = 1024;

class LlmcReader {
 public:
  // Opens the file and reads its header. NotFound, DataLoss (shorter than a header), Unavailable
  // (the system would not read).
  static absl::StatusOr<LlmcReader> Open(const std::string& path);
  // The same for a file that the caller reads: only header and size are known, and ReadAt() fails.
  static absl::StatusOr<LlmcReader> FromHeader(const std::string& path,
                                               std::span<const std::byte> header,
                                               int64_t size_bytes);
  LlmcReader(LlmcReader&& other) noexcept;
  LlmcReader& operator=(LlmcReader&&) = delete;
  ~LlmcReader();

  const std::string& path() const { return path_; }
  const LlmcHeader& header() const { return header_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Fills `out` from this offset. DataLoss if the file is too short.
  absl::Status ReadAt(int64_t offset, std::span<std::byte> out) const;

  // DataLoss that names the file.
  absl::Status Corrupt(const std::string& what) const;
  // OK if the file has exactly header + elements * element size.
  absl::Status CheckLength(__int128 elements, int64_t element_bytes) const;

 private:
  LlmcReader() = default;
  std::string path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
  LlmcHeader header_ = {};
};

// Close() renames the file to its own name, complete and durable. Without Close(), nothing remains.
class LlmcWriter {
 public:
  static absl::StatusOr<LlmcWriter> Create(const std::string& path, const LlmcHeader& header);

  absl::Status Append(std::span<const std::byte> bytes) { return file_->Append(bytes); }
  absl::Status Close() { return file_->Commit(); }

 private:
  explicit LlmcWriter(std::unique_ptr<FileReplacement> file) : file_(std::move(file)) {}
  std::unique_ptr<FileReplacement> file_;
};

}  // namespace tessera

#endif  // TESSERA_MODELS_LLMC_FILES_FILE_H_
