#ifndef TESSERA_CONVERT_CORE_FILE_CURSOR_H_
#define TESSERA_CONVERT_CORE_FILE_CURSOR_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_order.h"
#include "base/status_macros.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Reads a file from its beginning, a window at a time. Allocates no more bytes than the file has.
class FileCursor {
 public:
  FileCursor(const ReadableFile& file, uint64_t window_bytes)
      : file_(file), window_bytes_(window_bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return file_.size_bytes() - offset_; }

  // Returns the next bytes, valid until the next call. DataLoss if the file ends before.
  absl::StatusOr<std::string_view> Take(uint64_t bytes);

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
  absl::Status Truncated(uint64_t bytes) const;

  const ReadableFile& file_;
  const uint64_t window_bytes_;
  uint64_t offset_ = 0;
  std::string window_;
  uint64_t window_offset_ = 0;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_FILE_CURSOR_H_
