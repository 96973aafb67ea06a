#include "convert/pickle/byte_stream.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::ckpt::pickle {
namespace {

constexpr uint64_t kBlockBytes = 64 * 1024;

}  // namespace

absl::Status ByteStream::Ended(uint64_t needed) const {
  return absl::DataLossError(absl::StrCat("offset ", position_, ": expected ", needed,
                                          " more bytes, found ", remaining()));
}

absl::Status ByteStream::Fill(size_t length) {
  if (buffered() >= length) return absl::OkStatus();
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(next_));
  next_ = 0;
  const size_t have = buffer_.size();
  const uint64_t unread = remaining() - have;
  const uint64_t more = std::min(unread, std::max<uint64_t>(kBlockBytes, length) - have);
  buffer_.resize(have + more);
  const std::span<char> out = std::span(buffer_).subspan(have);
  const absl::Status status = file_.ReadAt(position_ + have, std::as_writable_bytes(out));
  if (!status.ok()) buffer_.resize(have);
  return status;
}

absl::StatusOr<uint8_t> ByteStream::ReadByte() {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view byte, ReadView(1));
  return static_cast<uint8_t>(byte[0]);
}

absl::StatusOr<std::string_view> ByteStream::ReadView(size_t length) {
  TESSERA_RETURN_IF_ERROR(CheckRemaining(length));
  TESSERA_RETURN_IF_ERROR(Fill(length));
  const std::string_view view(buffer_.data() + next_, length);
  next_ += length;
  position_ += length;
  return view;
}

absl::Status ByteStream::ReadInto(uint64_t length, std::string& to) {
  TESSERA_RETURN_IF_ERROR(CheckRemaining(length));
  while (length > 0) {
    TESSERA_RETURN_IF_ERROR(Fill(1));
    const size_t now = std::min<uint64_t>(length, buffered());
    to.append(buffer_.data() + next_, now);
    next_ += now;
    position_ += now;
    length -= now;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteStream::ReadLine(size_t max_bytes) {
  std::string line;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const uint8_t byte, ReadByte());
    if (byte == '\n') return line;
    if (line.size() == max_bytes) {
      return absl::DataLossError(
          absl::StrCat("offset ", position_, ": a line of more than ", max_bytes, " bytes"));
    }
    line.push_back(static_cast<char>(byte));
  }
}

absl::Status ByteStream::Skip(uint64_t length) {
  TESSERA_RETURN_IF_ERROR(CheckRemaining(length));
  position_ += length;
  if (length <= buffered()) {
    next_ += length;
  } else {
    buffer_.clear();
    next_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace tessera::ckpt::pickle
