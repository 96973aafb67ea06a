#ifndef TESSERA_CONVERT_CORE_BYTES_FILE_H_
#define TESSERA_CONVERT_CORE_BYTES_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "storage/checks.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

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

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_BYTES_FILE_H_
