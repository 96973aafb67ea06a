#ifndef TESSERA_CONVERT_CORE_DECODED_FILES_H_
#define TESSERA_CONVERT_CORE_DECODED_FILES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/errors.h"
#include "storage/forwarding_storage.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// A storage whose files are followed by contents that they encode, such as elements in a text, so
// that an offset means either. A read is in one of the two.
//
// Thread-safe, except for Add(). Memory: the decoded contents.
class DecodedFiles final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  void Add(const std::string& path, std::string decoded) {
    if (!decoded.empty()) decoded_[path] = std::move(decoded);
  }
  uint64_t decoded_bytes(const std::string& path) const {
    const auto found = decoded_.find(path);
    return found == decoded_.end() ? 0 : found->second.size();
  }
  // Returns the decoded contents by path; ends the use of the storage and its files.
  std::map<std::string, std::string> Take() && { return std::move(decoded_); }

  // The storage must outlive the file.
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(std::string_view path) override {
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = base().Open(path);
    const auto decoded = decoded_.find(std::string(path));
    if (!file.ok() || decoded == decoded_.end()) return file;
    return std::make_unique<File>(*std::move(file), decoded->second);
  }

 private:
  class File final : public ReadableFile {
   public:
    File(std::unique_ptr<ReadableFile> base, const std::string& decoded)
        : base_(std::move(base)), decoded_(decoded) {}

    absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
      const uint64_t base_bytes = base_->size_bytes();
      if (offset_bytes < base_bytes) return base_->ReadAt(offset_bytes, out);
      const auto decoded = std::as_bytes(std::span(decoded_));
      const uint64_t begin = offset_bytes - base_bytes;
      if (begin > decoded.size() || out.size() > decoded.size() - begin) {
        return DataLoss("read beyond the end of what the file encodes");
      }
      std::ranges::copy(decoded.subspan(begin, out.size()), out.begin());
      return absl::OkStatus();
    }
    uint64_t size_bytes() const override { return base_->size_bytes() + decoded_.size(); }

   private:
    const std::unique_ptr<ReadableFile> base_;
    const std::string& decoded_;
  };

  std::map<std::string, std::string> decoded_;
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_DECODED_FILES_H_
