#ifndef TESSERA_CONVERT_DESCRIBE_PLACE_H_
#define TESSERA_CONVERT_DESCRIBE_PLACE_H_

// Sentences about places in which no checkpoint was found.

#include <string>
#include <string_view>

#include "storage/storage.h"

namespace tessera::ckpt::convert {

// Describes a folder in which no checkpoint was found, the root of a storage, as the end of an
// error's sentence: "it is empty", or its first entries. Also names the file that is missing beside
// entries that look like a part of a checkpoint, of ours or of another framework.
std::string DescribeContents(Storage& folder);

// Describes a name that cannot be opened: "is a link to PATH, which is not there", or "is not
// there".
std::string DescribeAbsence(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_DESCRIBE_PLACE_H_
