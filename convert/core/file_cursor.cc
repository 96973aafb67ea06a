#include "convert/core/file_cursor.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/strings/str_cat.h"

namespace tessera::ckpt::convert {

absl::StatusOr<std::string_view> FileCursor::Take(uint64_t bytes) {
  if (bytes > left()) return Truncated(bytes);
  if (offset_ < window_offset_ || offset_ - window_offset_ + bytes > window_.size()) {
    window_.resize(std::min(left(), std::max(bytes, window_bytes_)));
    window_offset_ = offset_;
    TESSERA_RETURN_IF_ERROR(
        file_.ReadAt(offset_, std::as_writable_bytes(std::span(window_.data(), window_.size()))));
  }
  const std::string_view taken = std::string_view(window_).substr(offset_ - window_offset_, bytes);
  offset_ += bytes;
  return taken;
}

absl::Status FileCursor::Skip(uint64_t bytes) {
  if (bytes > left()) return Truncated(bytes);
  offset_ += bytes;
  return absl::OkStatus();
}

absl::Status FileCursor::Truncated(uint64_t bytes) const {
  return absl::DataLossError(absl::StrCat("the file ends after ", file_.size_bytes(),
                                          " bytes: expected ", bytes, " at offset ", offset_));
}

}  // namespace tessera::ckpt::convert
