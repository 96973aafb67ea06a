#ifndef TESSERA_CHECKPOINT_CONVERT_TESTING_STRING_FILE_H_
#define TESSERA_CHECKPOINT_CONVERT_TESTING_STRING_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt::convert {

// A file whose contents are a string. Counts the bytes that are read.
class StringFile final : public ReadableFile {
 public:
  explicit StringFile(std::string contents) : contents_(std::move(contents)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > contents_.size() || out.size() > contents_.size() - offset_bytes) {
      return absl::DataLossError("read beyond the end of the file");
    }
    if (!out.empty()) std::memcpy(out.data(), contents_.data() + offset_bytes, out.size());
    bytes_read_ += out.size();
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return contents_.size(); }

  const std::string& contents() const { return contents_; }
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  const std::string contents_;
  mutable uint64_t bytes_read_ = 0;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CHECKPOINT_CONVERT_TESTING_STRING_FILE_H_
