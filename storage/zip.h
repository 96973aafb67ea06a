#ifndef TESSERA_STORAGE_ZIP_H_
#define TESSERA_STORAGE_ZIP_H_

// Zip archives, zip64 included: reading the directory of one, and laying out a new one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/file_cursor.h"
#include "storage/storage.h"

namespace tessera {

struct ZipMember {
  std::string name;
  Extent data;  // of the file that holds the archive, as it is stored
  bool compressed = false;
  uint32_t crc32 = 0;  // of the contents before they were compressed
};

// Returns whether an archive may begin here, with the signature of a zip member.
bool LooksLikeZip(std::string_view first_bytes);

// Reads the members of the zip archive, zip64 included, that is part of a file. Strict, because
// programs disagree about malformed archives: the archive fills the part from its beginning to its
// end, central directory and local headers agree, no name occurs twice, no two members overlap,
// nothing is encrypted. Checksums of contents are not compared.
//
// Memory is proportional to the central directory, which lies within the part. Errors: DataLoss
// with offset and member; the file's own.
absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const ReadableFile& file, Extent part);

// Alignment of the members' data, as in torch's archives, so that it can be mapped.
inline constexpr uint64_t kZipAlignmentBytes = 64;

// Lays out a zip archive of uncompressed members whose sizes are known before their contents: the
// offset of each member's data, and the records around it once its checksum is known. Pure.
//
//   ZipLayout layout;
//   const uint64_t offset = layout.Add("archive/data/0", size);  // the data goes here
//   layout.SetCrc32(0, crc);
//   layout.LocalHeader(0), at layout.local_header_offset(0)
//   layout.Directory(), at layout.directory_offset(): the archive ends after it
class ZipLayout {
 public:
  // Adds a member. Returns the offset of its data from the beginning of the archive. Precondition:
  // the name has not been added and is shorter than 64 KiB.
  uint64_t Add(std::string name, uint64_t size_bytes);

  size_t size() const { return members_.size(); }
  // Sets zlib's crc32() of a member's contents, which changes no offset.
  void SetCrc32(size_t member, uint32_t crc32) { members_[member].crc32 = crc32; }

  uint64_t local_header_offset(size_t member) const { return members_[member].header_offset; }
  std::string LocalHeader(size_t member) const {
    return LocalHeader(member, members_[member].crc32);
  }
  std::string LocalHeader(size_t member, uint32_t crc32) const;
  uint64_t directory_offset() const { return end_; }
  std::string Directory() const;
  uint64_t directory_bytes() const { return Directory().size(); }

 private:
  struct Member {
    std::string name;
    uint64_t size_bytes = 0;
    uint64_t header_offset = 0;
    uint64_t data_offset = 0;
    uint32_t crc32 = 0;
  };

  std::vector<Member> members_;
  uint64_t end_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_STORAGE_ZIP_H_
