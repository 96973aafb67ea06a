#ifndef TESSERA_CHECKPOINT_VERIFY_OPTIONS_H_
#define TESSERA_CHECKPOINT_VERIFY_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/directory/damage.h"
#include "checkpoint/storage/tiered/tiered_storage.h"

namespace tessera::ckpt {

struct VerifyOptions {
  // Whether to compare the contents of every tensor with its logical digest, too.
  bool digests = false;
  // false: checks only the manifest, and the sizes and headers of the files.
  bool contents = true;
  int io_threads = 4;
  // Called with the bytes read so far and in all, by one thread at a time. Null: not called.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

struct VerifyReport {
  std::vector<Damage> damage;    // by file and offset; empty: everything is as it was written
  int64_t digests_verified = 0;  // tensors whose contents have the digest in the manifest
  int64_t digests_missing = 0;   // tensors without a digest in the manifest
  uint64_t bytes_read = 0;
  double seconds = 0;
};

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

#endif  // TESSERA_CHECKPOINT_VERIFY_OPTIONS_H_
