#ifndef TESSERA_CONVERT_CONTENTS_H_
#define TESSERA_CONVERT_CONTENTS_H_

#include <string>
#include <string_view>

#include "storage/storage.h"

namespace tessera::ckpt::convert {

// What is in a folder in which no checkpoint was found, the root of a storage, as the end of an
// error's sentence: "it is empty", or the first of its entries, and for those that look like a part
// of a checkpoint, of ours or of another framework, the file that is missing beside them.
std::string DescribeContents(Storage& folder);

// What there is at a name that cannot be opened: "is a link to PATH, which is not there", or
// "is not there".
std::string DescribeAbsence(std::string_view name);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CONTENTS_H_
