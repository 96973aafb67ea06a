#include "convert/torch/zip_layout.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/byte_order.h"
#include "base/checked_math.h"

namespace tessera::ckpt::convert {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint16_t kVersion = 45;  // zip64
constexpr uint16_t kUtf8Names = 1 << 11;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kPaddingExtra = 0x4246;  // "FB", as torch calls it
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kExtraHeaderBytes = 4;
constexpr uint64_t kLocalZip64Bytes = kExtraHeaderBytes + 16;
constexpr uint64_t kEnd64Bytes = 56;
// 1980-01-01, the first day that zip knows.
constexpr uint16_t kDate = (1 << 5) | 1;

template <typename T>
void Put(std::string& to, std::type_identity_t<T> value) {
  AppendLittleEndian<T>(value, to);
}

bool Needs64(uint64_t value) { return value >= UINT32_MAX; }
uint32_t In32(uint64_t value) { return Needs64(value) ? UINT32_MAX : value; }

}  // namespace

uint64_t ZipLayout::Add(std::string name, uint64_t size_bytes) {
  uint64_t headers_end = end_ + kLocalBytes + name.size() + kExtraHeaderBytes;
  if (Needs64(size_bytes)) headers_end += kLocalZip64Bytes;
  Member member = {.name = std::move(name), .size_bytes = size_bytes, .header_offset = end_};
  member.data_offset = RoundUp(headers_end, kZipAlignmentBytes);
  end_ = member.data_offset + size_bytes;
  members_.push_back(std::move(member));
  return members_.back().data_offset;
}

std::string ZipLayout::LocalHeader(size_t index, uint32_t crc32) const {
  const Member& member = members_[index];
  const uint64_t extra_bytes =
      member.data_offset - member.header_offset - kLocalBytes - member.name.size();
  std::string bytes;
  Put<uint32_t>(bytes, kLocalSignature);
  Put<uint16_t>(bytes, kVersion);
  Put<uint16_t>(bytes, kUtf8Names);
  Put<uint16_t>(bytes, 0);  // stored
  Put<uint16_t>(bytes, 0);  // time
  Put<uint16_t>(bytes, kDate);
  Put<uint32_t>(bytes, crc32);
  Put<uint32_t>(bytes, In32(member.size_bytes));
  Put<uint32_t>(bytes, In32(member.size_bytes));
  Put<uint16_t>(bytes, member.name.size());
  Put<uint16_t>(bytes, extra_bytes);
  bytes += member.name;
  uint64_t padding = extra_bytes - kExtraHeaderBytes;
  if (Needs64(member.size_bytes)) {
    Put<uint16_t>(bytes, kZip64Extra);
    Put<uint16_t>(bytes, kLocalZip64Bytes - kExtraHeaderBytes);
    Put<uint64_t>(bytes, member.size_bytes);
    Put<uint64_t>(bytes, member.size_bytes);
    padding -= kLocalZip64Bytes;
  }
  Put<uint16_t>(bytes, kPaddingExtra);
  Put<uint16_t>(bytes, padding);
  bytes.append(padding, 'Z');
  return bytes;
}

std::string ZipLayout::Directory() const {
  std::string bytes;
  for (const Member& member : members_) {
    std::string zip64;
    if (Needs64(member.size_bytes)) {
      Put<uint64_t>(zip64, member.size_bytes);
      Put<uint64_t>(zip64, member.size_bytes);
    }
    if (Needs64(member.header_offset)) Put<uint64_t>(zip64, member.header_offset);
    Put<uint32_t>(bytes, kCentralSignature);
    Put<uint16_t>(bytes, kVersion);
    Put<uint16_t>(bytes, kVersion);
    Put<uint16_t>(bytes, kUtf8Names);
    Put<uint16_t>(bytes, 0);  // stored
    Put<uint16_t>(bytes, 0);  // time
    Put<uint16_t>(bytes, kDate);
    Put<uint32_t>(bytes, member.crc32);
    Put<uint32_t>(bytes, In32(member.size_bytes));
    Put<uint32_t>(bytes, In32(member.size_bytes));
    Put<uint16_t>(bytes, member.name.size());
    Put<uint16_t>(bytes, zip64.empty() ? 0 : kExtraHeaderBytes + zip64.size());
    Put<uint16_t>(bytes, 0);  // comment
    Put<uint16_t>(bytes, 0);  // disk
    Put<uint16_t>(bytes, 0);  // attributes
    Put<uint32_t>(bytes, 0);
    Put<uint32_t>(bytes, In32(member.header_offset));
    bytes += member.name;
    if (zip64.empty()) continue;
    Put<uint16_t>(bytes, kZip64Extra);
    Put<uint16_t>(bytes, zip64.size());
    bytes += zip64;
  }
  const uint64_t directory_bytes = bytes.size();
  Put<uint32_t>(bytes, kEnd64Signature);
  Put<uint64_t>(bytes, kEnd64Bytes - 12);  // without this field and the one before it
  Put<uint16_t>(bytes, kVersion);
  Put<uint16_t>(bytes, kVersion);
  Put<uint32_t>(bytes, 0);  // disks
  Put<uint32_t>(bytes, 0);
  Put<uint64_t>(bytes, members_.size());
  Put<uint64_t>(bytes, members_.size());
  Put<uint64_t>(bytes, directory_bytes);
  Put<uint64_t>(bytes, end_);
  Put<uint32_t>(bytes, kLocator64Signature);
  Put<uint32_t>(bytes, 0);
  Put<uint64_t>(bytes, end_ + directory_bytes);
  Put<uint32_t>(bytes, 1);
  const uint16_t count = std::min<uint64_t>(members_.size(), UINT16_MAX);
  Put<uint32_t>(bytes, kEndSignature);
  Put<uint32_t>(bytes, 0);  // disks
  Put<uint16_t>(bytes, count);
  Put<uint16_t>(bytes, count);
  Put<uint32_t>(bytes, In32(directory_bytes));
  Put<uint32_t>(bytes, In32(end_));
  Put<uint16_t>(bytes, 0);  // comment
  return bytes;
}

}  // namespace tessera::ckpt::convert
