#ifndef TESSERA_CHECKPOINT_VERIFY_VERIFY_PARTS_H_
#define TESSERA_CHECKPOINT_VERIFY_VERIFY_PARTS_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/directory/damaged_parts.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

// Reads the chunks that hold the named bytes, and compares their checksums; parts of other files
// than the data files, and parts without bytes, are skipped. A chunk whose checksum is wrong is
// read twice more: bytes that were damaged on their way from a remote storage are intact then.
//
// DataLoss or NotFound: what is damaged; other errors are those of the storage. Memory: one chunk.
absl::Status VerifyParts(Storage& storage, std::string_view checkpoint_dir,
                         const Manifest& manifest, const std::vector<DamagedPart>& parts);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_VERIFY_VERIFY_PARTS_H_
