#ifndef TESSERA_CHECKPOINT_INCLUDE_VERIFY_OPTIONS_H_
#define TESSERA_CHECKPOINT_INCLUDE_VERIFY_OPTIONS_H_

// Implemented in checkpoint/scan/verify.cc.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tessera::ckpt {

struct VerifyOptions {
  // Whether to compare also the contents of every tensor with its logical digest.
  bool digests = false;
  // Whether to check the contents; if not, checks only the manifest, and the sizes and headers of
  // the files.
  bool contents = true;
  int io_threads = 4;
  // Called with the bytes read so far and in total, by one thread at a time. Null: not called.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
  std::function<bool()> is_cancelled = {};  // as in LoadOptions; true ends with Cancelled
};

// A place in a checkpoint that does not hold the bytes that were written there.
struct Damage {
  std::string file;  // in the checkpoint's directory
  uint64_t offset_bytes = 0;
  std::string tensor;  // empty: not within a tensor
  std::string message;
};

struct VerifyReport {
  std::vector<Damage> damage;    // by file and offset; empty: no damage
  int64_t digests_verified = 0;  // tensors whose contents have the digest in the manifest
  int64_t digests_missing = 0;   // tensors without a digest in the manifest
  uint64_t bytes_read = 0;
  absl::Duration duration;
};

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_VERIFY_OPTIONS_H_
