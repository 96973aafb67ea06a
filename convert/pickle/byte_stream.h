#ifndef TESSERA_CONVERT_PICKLE_BYTE_STREAM_H_
#define TESSERA_CONVERT_PICKLE_BYTE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::pickle {

// Reads part of a file from its beginning to its end, in blocks. What is skipped is not read.
// Errors: DataLoss where the part ends early; the file's own.
class ByteStream {
 public:
  // Precondition: the part lies within the file, which outlives the stream.
  ByteStream(const ReadableFile& file, Extent part)
      : file_(file), position_(part.offset), end_(part.offset + part.length) {}

  // File offset of the next byte.
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return end_ - position_; }

  absl::StatusOr<uint8_t> ReadByte();

  // The next bytes, valid until the next call. Precondition: length <= kMaxViewBytes.
  absl::StatusOr<std::string_view> ReadView(size_t length);
  static constexpr size_t kMaxViewBytes = 16;

  // Appends the next bytes to `to`; nothing is allocated unless they are there.
  absl::Status ReadInto(uint64_t length, std::string& to);

  // The bytes before the next '\n', which is skipped.
  absl::StatusOr<std::string> ReadLine(size_t max_bytes);

  absl::Status Skip(uint64_t length);

 private:
  size_t buffered() const { return buffer_.size() - next_; }
  absl::Status Ended(uint64_t needed) const;
  absl::Status CheckRemaining(uint64_t needed) const {
    return needed <= remaining() ? absl::OkStatus() : Ended(needed);
  }
  // Precondition: at least `length` bytes remain.
  absl::Status Fill(size_t length);

  const ReadableFile& file_;
  uint64_t position_;
  const uint64_t end_;
  std::vector<char> buffer_;
  size_t next_ = 0;  // into buffer_
};

}  // namespace tessera::ckpt::pickle

#endif  // TESSERA_CONVERT_PICKLE_BYTE_STREAM_H_
