#ifndef TESSERA_CONVERT_TESTING_STRING_FILE_H_
#define TESSERA_CONVERT_TESTING_STRING_FILE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "storage/storage.h"

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

// A file with a hole of zeros in the middle of its contents, which takes no disk.
class FileWithHole final : public ReadableFile {
 public:
  static constexpr uint64_t kHoleBytes = uint64_t{1} << 40;

  explicit FileWithHole(std::string contents) : contents_(std::move(contents)) {}

  absl::Status ReadAt(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > size_bytes() || out.size() > size_bytes() - offset_bytes) {
      return absl::DataLossError("read beyond the end of the file");
    }
    std::ranges::fill(out, std::byte{0});
    const uint64_t hole = contents_.size() / 2, after = hole + kHoleBytes;
    const auto bytes = std::as_bytes(std::span(contents_));
    const auto copy = [&](uint64_t begin, uint64_t end, uint64_t shift) {  // of the file
      begin = std::max(begin, offset_bytes);
      end = std::min(end, offset_bytes + out.size());
      if (begin >= end) return;
      std::ranges::copy(bytes.subspan(begin - shift, end - begin),
                        out.begin() + static_cast<std::ptrdiff_t>(begin - offset_bytes));
    };
    copy(0, hole, 0);
    copy(after, size_bytes(), kHoleBytes);
    return absl::OkStatus();
  }
  uint64_t size_bytes() const override { return contents_.size() + kHoleBytes; }

 private:
  const std::string contents_;
};

// Returns the archive with all checksums set to 0, as torch.save() writes it without checksums.
inline std::string WithoutChecksums(std::string zip) {
  using namespace std::string_view_literals;
  for (const auto& [mark, offset] :
       {std::pair("PK\3\4"sv, 14), std::pair("PK\1\2"sv, 16), std::pair("PK\7\x08"sv, 4)}) {
    for (size_t at = zip.find(mark); at != zip.npos; at = zip.find(mark, at + mark.size())) {
      zip.replace(at + offset, sizeof(uint32_t), sizeof(uint32_t), '\0');
    }
  }
  return zip;
}

// Inverts a byte of the contents of the first member whose name ends with `end_of_name`. Returns
// false if no member does.
inline bool DamageMember(std::string_view end_of_name, std::string& zip) {
  constexpr std::string_view kMark = "PK\3\4";
  for (size_t at = zip.find(kMark); at != zip.npos; at = zip.find(kMark, at + kMark.size())) {
    const auto number = [&](size_t offset) {
      return static_cast<uint8_t>(zip[at + offset]) +
             256 * static_cast<uint8_t>(zip[at + offset + 1]);
    };
    constexpr size_t kHeaderBytes = 30;
    const size_t name_bytes = number(26), extra_bytes = number(28);
    if (!std::string_view(zip).substr(at + kHeaderBytes, name_bytes).ends_with(end_of_name)) {
      continue;
    }
    char& byte = zip[at + kHeaderBytes + name_bytes + extra_bytes + 2];
    byte = static_cast<char>(~byte);
    return true;
  }
  return false;
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TESTING_STRING_FILE_H_
