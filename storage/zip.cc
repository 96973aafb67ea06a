#include "storage/zip.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/byte_order.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace tessera {
namespace {

// Sizes of the fixed parts of the records, and their signatures.
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kLocalBytes = 30;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kLocalSignature = 0x04034b50;

constexpr uint64_t kMaxCommentBytes = 0xFFFF;
constexpr uint64_t kTailBytes = 4096;  // holds the whole directory of a small archive
// An entry of the directory with the longest name, extra fields and comment. The directory is read
// in blocks of several, since a file may have a hole of any size where the directory should be.
constexpr uint64_t kMaxEntryBytes = kCentralBytes + 3 * uint64_t{0xFFFF};
constexpr uint64_t kBlockBytes = 2 * kMaxEntryBytes;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kEncrypted = 1;
constexpr uint16_t kSizesFollowData = 8;
constexpr uint32_t kIn64Bits = 0xFFFFFFFF;

uint64_t U16(std::string_view bytes, size_t at) {
  return LoadLittleEndian<uint16_t>(bytes.data() + at);
}
uint64_t U32(std::string_view bytes, size_t at) {
  return LoadLittleEndian<uint32_t>(bytes.data() + at);
}
uint64_t U64(std::string_view bytes, size_t at) {
  return LoadLittleEndian<uint64_t>(bytes.data() + at);
}

struct End {
  uint64_t members = 0;
  uint64_t directory_bytes = 0;
  uint64_t directory_offset = 0;  // within the archive
  uint64_t offset = 0;            // of the first end record, within the archive
};

struct Entry {
  std::string name;
  uint64_t size = 0;          // as it is in the archive
  uint64_t local_offset = 0;  // within the archive
  uint64_t flags = 0;
  uint64_t method = 0;  // 0: stored
  uint32_t crc32 = 0;
};

// Replaces sizes that do not fit 32 bits by those of the zip64 extra field, in its order.
bool ApplyZip64(std::string_view extra, std::initializer_list<uint64_t*> fields) {
  while (extra.size() >= 4) {
    const uint64_t id = U16(extra, 0), length = U16(extra, 2);
    if (length > extra.size() - 4) return false;
    if (id == kZip64Extra) {
      std::string_view values = extra.substr(4, length);
      for (uint64_t* field : fields) {
        if (*field != kIn64Bits) continue;
        if (values.size() < 8) return false;
        *field = U64(values, 0);
        values.remove_prefix(8);
      }
      return true;
    }
    extra.remove_prefix(4 + length);
  }
  return std::none_of(fields.begin(), fields.end(), [](uint64_t* f) { return *f == kIn64Bits; });
}

// Reads the directory at the end of an archive, and locates each member's data by its local header.
// Refuses archives in which members overlap or a name occurs twice.
class Directory {
 public:
  Directory(const ReadableFile& file, Extent part) : file_(file), part_(part) {}

  absl::StatusOr<std::vector<ZipMember>> Read() {
    if (part_.offset > file_.size_bytes() || part_.length > file_.size_bytes() - part_.offset ||
        part_.length < kEndBytes) {
      return Wrong(0, "of ", part_.length, " bytes, in a file of ", file_.size_bytes(), " bytes");
    }
    TESSERA_ASSIGN_OR_RETURN(const End end, FindEnd());
    std::vector<ZipMember> members;
    absl::flat_hash_set<std::string> names;
    std::string block;
    std::string_view rest;
    uint64_t block_end = end.directory_offset;
    for (uint64_t i = 0; i < end.members; ++i) {
      if (rest.size() < kMaxEntryBytes && block_end < end.offset) {
        const uint64_t more = std::min(kBlockBytes, end.offset - block_end);
        TESSERA_ASSIGN_OR_RETURN(const std::string next, Bytes(block_end, more));
        block = std::string(rest) + next;
        rest = block;
        block_end += more;
      }
      const uint64_t offset = block_end - rest.size();
      TESSERA_ASSIGN_OR_RETURN(const Entry entry, ParseEntry(rest, offset));
      if (!names.insert(entry.name).second) {
        return Wrong(offset, Shown(entry.name), " occurs twice");
      }
      TESSERA_ASSIGN_OR_RETURN(ZipMember member, Locate(entry, end.directory_offset));
      members.push_back(std::move(member));
    }
    if (const uint64_t unread = rest.size() + end.offset - block_end; unread > 0) {
      return Wrong(end.offset - unread, "unknown bytes after the directory");
    }
    TESSERA_RETURN_IF_ERROR(CheckDisjoint(members));
    return members;
  }

 private:
  template <typename... Parts>
  absl::Status Wrong(uint64_t offset, const Parts&... what) const {
    return DataLoss("offset ", part_.offset + offset, ": zip archive: ", what...);
  }
  // Returns a range of the archive. Precondition: it lies within it.
  absl::StatusOr<std::string> Bytes(uint64_t offset, uint64_t length) const {
    return ReadPart(file_, part_.offset + offset, length);
  }

  absl::StatusOr<End> FindEnd() const {
    TESSERA_ASSIGN_OR_RETURN(std::optional<uint64_t> offset, FindEndIn(kTailBytes));
    if (!offset) {
      TESSERA_ASSIGN_OR_RETURN(offset, FindEndIn(kEndBytes + kMaxCommentBytes));
    }
    if (!offset) return Wrong(part_.length, "it has no end; is the file complete?");
    TESSERA_ASSIGN_OR_RETURN(const std::string bytes, Bytes(*offset, kEndBytes));
    End end = {.members = U16(bytes, 10),
               .directory_bytes = U32(bytes, 12),
               .directory_offset = U32(bytes, 16),
               .offset = *offset};
    if (*offset >= kLocator64Bytes) {
      TESSERA_ASSIGN_OR_RETURN(const std::string locator, Bytes(*offset - kLocator64Bytes, 4));
      if (U32(locator, 0) == kLocator64Signature) {
        TESSERA_ASSIGN_OR_RETURN(end, ReadEnd64(*offset));
      }
    }
    if (end.directory_offset > end.offset ||
        end.directory_bytes != end.offset - end.directory_offset ||
        end.members > end.directory_bytes / kCentralBytes) {
      return Wrong(*offset, "the end record does not match the directory");
    }
    return end;
  }

  // Returns the offset of the end record within the archive, which ends with the record's comment.
  absl::StatusOr<std::optional<uint64_t>> FindEndIn(uint64_t tail_bytes) const {
    const uint64_t length = std::min(tail_bytes, part_.length);
    TESSERA_ASSIGN_OR_RETURN(const std::string tail, Bytes(part_.length - length, length));
    for (uint64_t comment = 0; comment + kEndBytes <= length; ++comment) {
      const uint64_t at = length - kEndBytes - comment;
      if (U32(tail, at) == kEndSignature && U16(tail, at + 20) == comment) {
        return part_.length - length + at;
      }
    }
    return std::nullopt;
  }

  absl::StatusOr<End> ReadEnd64(uint64_t end_offset) const {
    TESSERA_ASSIGN_OR_RETURN(const std::string locator,
                             Bytes(end_offset - kLocator64Bytes, kLocator64Bytes));
    const uint64_t offset = U64(locator, 8);
    if (end_offset < kLocator64Bytes + kEnd64Bytes ||
        offset != end_offset - kLocator64Bytes - kEnd64Bytes) {
      return Wrong(end_offset, "the zip64 end record is not where it should be");
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string end, Bytes(offset, kEnd64Bytes));
    if (U32(end, 0) != kEnd64Signature) return Wrong(offset, "no zip64 end record");
    return End{.members = U64(end, 32),
               .directory_bytes = U64(end, 40),
               .directory_offset = U64(end, 48),
               .offset = offset};
  }

  absl::StatusOr<Entry> ParseEntry(std::string_view& rest, uint64_t offset) const {
    if (rest.size() < kCentralBytes || U32(rest, 0) != kCentralSignature) {
      return Wrong(offset, "no entry of the directory");
    }
    const uint64_t name_bytes = U16(rest, 28), extra_bytes = U16(rest, 30);
    const uint64_t entry_bytes = kCentralBytes + name_bytes + extra_bytes + U16(rest, 32);
    if (entry_bytes > rest.size()) return Wrong(offset, "an entry reaches beyond the directory");
    Entry entry = {.name = std::string(rest.substr(kCentralBytes, name_bytes)),
                   .size = U32(rest, 24),
                   .local_offset = U32(rest, 42),
                   .flags = U16(rest, 8),
                   .method = U16(rest, 10),
                   .crc32 = static_cast<uint32_t>(U32(rest, 16))};
    uint64_t compressed = U32(rest, 20);
    if (!ApplyZip64(rest.substr(kCentralBytes + name_bytes, extra_bytes),
                    {&entry.size, &compressed, &entry.local_offset})) {
      return Wrong(offset, Shown(entry.name), ": malformed extra fields");
    }
    if (entry.method == 0 && compressed != entry.size) {
      return Wrong(offset, Shown(entry.name), ": stored, and yet of two sizes");
    }
    if ((entry.flags & kEncrypted) != 0) return Wrong(offset, Shown(entry.name), " is encrypted");
    entry.size = compressed;
    rest.remove_prefix(entry_bytes);
    return entry;
  }

  // Returns the data of a member, which lies before the directory.
  absl::StatusOr<ZipMember> Locate(const Entry& entry, uint64_t directory_offset) const {
    const uint64_t offset = entry.local_offset;
    const uint64_t header_bytes = kLocalBytes + entry.name.size();
    if (offset > directory_offset || header_bytes > directory_offset - offset) {
      return Wrong(offset, Shown(entry.name), " does not begin before the directory");
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string header, Bytes(offset, header_bytes));
    const uint64_t extra_bytes = U16(header, 28);
    const bool sizes_known = (U16(header, 6) & kSizesFollowData) == 0;
    const uint64_t size = U32(header, 18);
    const bool same_size = !sizes_known || size == kIn64Bits || size == entry.size;
    const bool same_crc32 = !sizes_known || U32(header, 14) == entry.crc32;
    if (U32(header, 0) != kLocalSignature || U16(header, 8) != entry.method ||
        U16(header, 6) != entry.flags || U16(header, 26) != entry.name.size() ||
        header.substr(kLocalBytes) != entry.name || !same_size || !same_crc32) {
      return Wrong(offset, Shown(entry.name), ": directory and local header differ");
    }
    const uint64_t room = directory_offset - offset - header_bytes;
    if (extra_bytes > room || entry.size > room - extra_bytes) {
      return Wrong(offset, Shown(entry.name), ": its ", entry.size,
                   " bytes do not end before the directory");
    }
    return ZipMember{.name = entry.name,
                     .data = {part_.offset + offset + header_bytes + extra_bytes, entry.size},
                     .compressed = entry.method != 0,
                     .crc32 = entry.crc32};
  }

  absl::Status CheckDisjoint(std::vector<ZipMember> members) const {
    std::sort(members.begin(), members.end(), [](const ZipMember& a, const ZipMember& b) {
      return std::pair(a.data.offset, a.data.length) < std::pair(b.data.offset, b.data.length);
    });
    uint64_t end = 0;
    for (const ZipMember& member : members) {
      if (member.data.offset < end) {
        return Wrong(member.data.offset - part_.offset, Shown(member.name),
                     " overlaps another member");
      }
      end = member.data.offset + member.data.length;
    }
    return absl::OkStatus();
  }

  const ReadableFile& file_;
  const Extent part_;
};

// Constants and helpers of the layout of a new archive.
constexpr uint16_t kVersion = 45;  // zip64
constexpr uint16_t kUtf8Names = 1 << 11;
constexpr uint16_t kPaddingExtra = 0x4246;  // "FB", as torch calls it
constexpr uint64_t kExtraHeaderBytes = 4;
constexpr uint64_t kLocalZip64Bytes = kExtraHeaderBytes + 16;
// 1980-01-01, the first day that zip knows.
constexpr uint16_t kDate = (1 << 5) | 1;

template <typename T>
void Put(std::string& to, std::type_identity_t<T> value) {
  AppendLittleEndian<T>(value, to);
}

bool Needs64(uint64_t value) { return value >= UINT32_MAX; }
uint32_t In32(uint64_t value) { return Needs64(value) ? UINT32_MAX : value; }

// Writes the fields that local header and directory entry of an uncompressed member share.
void PutMember(uint32_t crc32, uint64_t size_bytes, uint64_t name_bytes, uint64_t extra_bytes,
               std::string& to) {
  Put<uint16_t>(to, kVersion);
  Put<uint16_t>(to, kUtf8Names);
  Put<uint16_t>(to, 0);  // stored
  Put<uint16_t>(to, 0);  // time
  Put<uint16_t>(to, kDate);
  Put<uint32_t>(to, crc32);
  Put<uint32_t>(to, In32(size_bytes));
  Put<uint32_t>(to, In32(size_bytes));
  Put<uint16_t>(to, name_bytes);
  Put<uint16_t>(to, extra_bytes);
}

}  // namespace

bool LooksLikeZip(std::string_view first_bytes) {
  return first_bytes.size() >= 4 && U32(first_bytes, 0) == kLocalSignature;
}

absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const ReadableFile& file, Extent part) {
  return Directory(file, part).Read();
}

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
  PutMember(crc32, member.size_bytes, member.name.size(), extra_bytes, bytes);
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
    const uint64_t extra_bytes = zip64.empty() ? 0 : kExtraHeaderBytes + zip64.size();
    PutMember(member.crc32, member.size_bytes, member.name.size(), extra_bytes, bytes);
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

}  // namespace tessera
