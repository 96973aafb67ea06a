#include "storage/file_cursor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status FileCursor::Fill(uint64_t bytes) {
  TESSERA_RETURN_IF_ERROR(CheckLeft(bytes));
  window_.resize(std::min(left(), std::max(bytes, window_bytes_)));
  window_offset_ = offset_;
  return file_.ReadAt(offset_, std::as_writable_bytes(std::span(window_.data(), window_.size())));
}

absl::Status FileCursor::Skip(uint64_t bytes) {
  TESSERA_RETURN_IF_ERROR(CheckLeft(bytes));
  offset_ += bytes;
  return absl::OkStatus();
}

absl::Status FileCursor::CheckLeft(uint64_t bytes) const {
  if (bytes <= left()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("offset ", offset_, ": expected ", bytes, " more bytes, found ", left()));
}

}  // namespace tessera
