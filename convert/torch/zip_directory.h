#ifndef TESSERA_CONVERT_TORCH_ZIP_DIRECTORY_H_
#define TESSERA_CONVERT_TORCH_ZIP_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

struct ZipMember {
  std::string name;
  pickle::Extent data;  // of the file that holds the archive, as it is stored
  bool compressed = false;
  uint32_t crc32 = 0;  // of the contents before they were compressed
};

// Whether an archive may begin here: the signature of a zip member.
bool LooksLikeZip(std::string_view first_bytes);

// The members of the zip archive, zip64 included, that is part of a file. Strict, because programs
// disagree about archives that are not: the archive fills the part from its beginning to its end,
// central directory and local headers agree, no name occurs twice, no two members overlap, nothing
// is encrypted. Checksums of contents are not compared.
//
// Memory is proportional to the central directory, which lies within the part. Errors: DataLoss
// with offset and member; the file's own.
absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const ReadableFile& file,
                                                        pickle::Extent part);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_ZIP_DIRECTORY_H_
