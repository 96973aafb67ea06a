#include "convert/torch/tar_directory.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::ckpt::convert {
namespace {

using pickle::Extent;

constexpr size_t kBlockBytes = 512;
constexpr std::string_view kMark = "ustar";
constexpr size_t kMarkOffset = kTarMarkEnd - kMark.size();
constexpr size_t kMaxMembers = 64;
constexpr uint64_t kMaxExtensionBytes = 64 << 10;

// Of a header: where its fields are.
constexpr std::pair<size_t, size_t> kName = {0, 100}, kSize = {124, 12}, kChecksum = {148, 8};
constexpr size_t kType = 156;

using Block = std::array<char, kBlockBytes>;

std::string_view Field(const Block& block, std::pair<size_t, size_t> field) {
  return {block.data() + field.first, field.second};
}

// Octal digits between blanks, or, for what has too many, the number in base 256.
std::optional<uint64_t> ParseNumber(std::string_view field) {
  uint64_t number = 0;
  if (static_cast<uint8_t>(field[0]) == 0x80) {
    for (const char c : field.substr(1)) {
      if (number >> 56 != 0) return std::nullopt;
      number = number << 8 | static_cast<uint8_t>(c);
    }
    return number;
  }
  const size_t first = std::min(field.find_first_not_of(' '), field.size());
  const size_t end = std::min(field.find_first_of(std::string_view("\0 ", 2), first), field.size());
  if (first == end) return std::nullopt;
  for (const char c : field.substr(first, end - first)) {
    if (c < '0' || c > '7') return std::nullopt;
    number = number << 3 | static_cast<uint64_t>(c - '0');
  }
  return number;
}

// The sum of the header's bytes, those of the sum itself taken as blanks.
bool HasItsChecksum(const Block& block) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlockBytes; ++i) {
    const bool own = i >= kChecksum.first && i < kChecksum.first + kChecksum.second;
    sum += own ? ' ' : static_cast<uint8_t>(block[i]);
  }
  return ParseNumber(Field(block, kChecksum)) == sum;
}

class TarReader {
 public:
  TarReader(const ReadableFile& file, Extent part)
      : file_(file), at_(part.offset), end_(part.offset + part.length) {}

  absl::StatusOr<std::vector<TarMember>> Run() {
    while (end_ - at_ >= kBlockBytes) {
      Block block;
      TESSERA_RETURN_IF_ERROR(file_.ReadAt(at_, std::as_writable_bytes(std::span(block))));
      if (std::ranges::all_of(block, [](char c) { return c == 0; })) return std::move(members_);
      if (!HasItsChecksum(block)) return Malformed("a header whose checksum is wrong");
      TESSERA_RETURN_IF_ERROR(AddMember(block));
    }
    return Malformed("the archive ends before its end mark");
  }

 private:
  absl::Status Malformed(std::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("offset ", at_, " of a tar archive: ", std::string(what)));
  }

  absl::Status AddMember(const Block& block) {
    std::optional<uint64_t> size = ParseNumber(Field(block, kSize));
    const char type = block[kType];
    const bool extends = type == 'x' || type == 'g';
    if (!extends && next_size_.has_value()) size = std::exchange(next_size_, std::nullopt);
    const Extent data = {at_ + kBlockBytes, size.value_or(UINT64_MAX)};
    if (data.length > end_ - data.offset) return Malformed("a member beyond the end of the file");
    if (extends) {
      TESSERA_RETURN_IF_ERROR(ReadExtension(data, type == 'x'));
    } else if (type != '0' && type != '\0') {
      return Malformed("a member that is no file: not written by torch.save()");
    } else {
      const std::string_view field = Field(block, kName);
      std::string name(field.substr(0, field.find('\0')));
      for (const TarMember& member : members_) {
        if (member.name == name) return Malformed("two members of one name");
      }
      if (members_.size() == kMaxMembers) return Malformed("too many members");
      members_.push_back({std::move(name), data});
    }
    const uint64_t padding = (kBlockBytes - data.length % kBlockBytes) % kBlockBytes;
    at_ = data.offset + data.length;
    at_ += std::min(padding, end_ - at_);
    return absl::OkStatus();
  }

  // Lines "LENGTH KEY=VALUE\n", in place of fields of the next header.
  absl::Status ReadExtension(Extent data, bool of_next) {
    if (data.length > kMaxExtensionBytes) return Malformed("an extended header that is too long");
    std::string text(data.length, '\0');
    TESSERA_RETURN_IF_ERROR(
        file_.ReadAt(data.offset, std::as_writable_bytes(std::span<char>(text))));
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> record =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      const std::pair<absl::string_view, absl::string_view> field =
          absl::StrSplit(record.second, absl::MaxSplits('=', 1));
      if (field.first == "path") return Malformed("a member with a long name");
      if (field.first != "size") continue;
      uint64_t size = 0;
      if (!of_next || !absl::SimpleAtoi(field.second, &size)) return Malformed("a malformed size");
      next_size_ = size;
    }
    return absl::OkStatus();
  }

  const ReadableFile& file_;
  uint64_t at_;
  const uint64_t end_;
  std::vector<TarMember> members_;
  std::optional<uint64_t> next_size_;
};

}  // namespace

bool LooksLikeTar(std::string_view first_bytes) {
  return first_bytes.size() >= kTarMarkEnd && first_bytes.substr(kMarkOffset).starts_with(kMark);
}

absl::StatusOr<std::vector<TarMember>> ReadTarDirectory(const ReadableFile& file, Extent part) {
  return TarReader(file, part).Run();
}

}  // namespace tessera::ckpt::convert
