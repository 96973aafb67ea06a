#ifndef TESSERA_CHECKPOINT_VERIFY_NEARBY_COPIES_H_
#define TESSERA_CHECKPOINT_VERIFY_NEARBY_COPIES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/tiered/tiered_storage.h"

namespace tessera::ckpt {

struct NearbyCopies {
  uint64_t good_bytes = 0;  // in files that a load reads from the staging tier
  int64_t dropped_files = 0;
};

// Call before a load. Reads the copies of a committed checkpoint's data files in the staging tier,
// and deletes those that are not, byte for byte by their checksums, what the remote manifest
// describes. Files without such a copy are not read. Errors: those of the manifest, see
// ReadManifest().
absl::StatusOr<NearbyCopies> DropDamagedCopies(TieredStorage& storage,
                                               std::string_view checkpoint_dir);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_VERIFY_NEARBY_COPIES_H_
