#ifndef TESSERA_STORAGE_FILE_CURSOR_H_
#define TESSERA_STORAGE_FILE_CURSOR_H_

// Ways to read small files, and the beginnings of large ones.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "storage/checks.h"
#include "storage/storage.h"

namespace tessera {

// A range of bytes of a file.
struct Extent {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const Extent&) const = default;
};

// Reads bytes of a file. Precondition: the caller has bounded their number.
inline absl::StatusOr<std::string> ReadPart(const ReadableFile& file, uint64_t offset,
                                            uint64_t length) {
  std::string bytes(length, '\0');
  TESSERA_RETURN_IF_ERROR(file.ReadAt(offset, std::as_writable_bytes(std::span<char>(bytes))));
  return bytes;
}

// Reads bytes [begin, end) of a file from their beginning, a window at a time. Allocates no more
// bytes than are there. Precondition: the file has them.
class FileCursor {
 public:
  FileCursor(const ReadableFile& file, uint64_t window_bytes, uint64_t begin, uint64_t end)
      : file_(file), window_bytes_(window_bytes), end_(end), offset_(begin) {}
  FileCursor(const ReadableFile& file, uint64_t window_bytes)
      : FileCursor(file, window_bytes, 0, file.size_bytes()) {}

  uint64_t offset() const { return offset_; }  // in the file
  uint64_t left() const { return end_ - offset_; }

  // Returns the next bytes, valid until the next call. DataLoss if the end comes before.
  absl::StatusOr<std::string_view> Take(uint64_t bytes) {
    uint64_t at = offset_ - window_offset_;
    if (at > window_.size() || bytes > window_.size() - at) {
      TESSERA_RETURN_IF_ERROR(Fill(bytes));
      at = 0;
    }
    offset_ += bytes;
    return std::string_view(window_).substr(at, bytes);
  }

  // Returns the next number, which is little-endian.
  template <typename T>
  absl::StatusOr<T> Number() {
    static_assert(std::is_trivially_copyable_v<T>);
    TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes, Take(sizeof(T)));
    T number;
    std::memcpy(&number, bytes.data(), sizeof(T));
    return number;
  }

  absl::Status Skip(uint64_t bytes);

 private:
  absl::Status CheckLeft(uint64_t bytes) const;
  // Makes the window begin at the offset, with at least these bytes.
  absl::Status Fill(uint64_t bytes);

  const ReadableFile& file_;
  const uint64_t window_bytes_, end_;
  uint64_t offset_;
  std::string window_;
  uint64_t window_offset_ = 0;
};

// A file whose contents are in memory, which must outlive this object.
class BytesFile final : public ReadableFile {
 public:
  // `name` is used in messages.
  BytesFile(std::string name, std::string_view contents)
      : name_(std::move(name)), contents_(contents) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > contents_.size() || out.size() > contents_.size() - offset_bytes) {
      return ShortReadStatus(name_, offset_bytes, out.size(), contents_.size());
    }
    if (!out.empty()) std::memcpy(out.data(), contents_.data() + offset_bytes, out.size());
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return contents_.size(); }

 private:
  const std::string name_;
  const std::string_view contents_;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_FILE_CURSOR_H_
