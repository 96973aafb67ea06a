#ifndef TESSERA_CONVERT_TORCH_TAR_DIRECTORY_H_
#define TESSERA_CONVERT_TORCH_TAR_DIRECTORY_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

struct TarMember {
  std::string name;
  pickle::Extent data;  // of the file that holds the archive
};

// Of a file, so that LooksLikeTar() can tell.
inline constexpr size_t kTarMarkEnd = 262;

// Whether a tar archive begins here, of POSIX's or GNU's form.
bool LooksLikeTar(std::string_view first_bytes);

// The members of the tar archive that is part of a file, which are few: all must be regular files
// of different names, inside the part, with valid headers. Errors: DataLoss with the offset; the
// file's own.
absl::StatusOr<std::vector<TarMember>> ReadTarDirectory(const ReadableFile& file,
                                                        pickle::Extent part);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_TAR_DIRECTORY_H_
