#include "convert/core/decoded_files.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "absl/status/status.h"

namespace tessera::ckpt::convert {

class DecodedFiles::File final : public ReadableFile {
 public:
  File(std::unique_ptr<ReadableFile> base, const std::string& decoded)
      : base_(std::move(base)), decoded_(decoded) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    const uint64_t base_bytes = base_->size_bytes();
    if (offset_bytes < base_bytes) return base_->ReadAt(offset_bytes, out);
    const auto decoded = std::as_bytes(std::span(decoded_));
    const uint64_t begin = offset_bytes - base_bytes;
    if (begin > decoded.size() || out.size() > decoded.size() - begin) {
      return absl::DataLossError("read beyond the end of what the file encodes");
    }
    std::ranges::copy(decoded.subspan(begin, out.size()), out.begin());
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return base_->size_bytes() + decoded_.size(); }

 private:
  const std::unique_ptr<ReadableFile> base_;
  const std::string& decoded_;
};

void DecodedFiles::Add(const std::string& path, std::string decoded) {
  if (!decoded.empty()) decoded_[path] = std::move(decoded);
}

uint64_t DecodedFiles::decoded_bytes(const std::string& path) const {
  const auto found = decoded_.find(path);
  return found == decoded_.end() ? 0 : found->second.size();
}

absl::StatusOr<std::unique_ptr<ReadableFile>> DecodedFiles::Open(std::string_view path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = base().Open(path);
  const auto decoded = decoded_.find(std::string(path));
  if (!file.ok() || decoded == decoded_.end()) return file;
  return std::make_unique<File>(*std::move(file), decoded->second);
}

}  // namespace tessera::ckpt::convert
