#ifndef TESSERA_CHECKPOINT_VERIFY_VERIFY_H_
#define TESSERA_CHECKPOINT_VERIFY_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/directory/damage.h"
#include "checkpoint/storage/storage.h"

namespace tessera::ckpt {

struct VerifyReport {
  std::vector<Damage> damage;    // empty: everything is as it was written
  int64_t digests_verified = 0;  // tensors whose contents have the digest that the manifest says
  int64_t digests_missing = 0;   // tensors for which it says none
  uint64_t bytes_read = 0;
  double seconds = 0;
};

// Reads every byte; checks checksums, headers, coverage and, where asked, logical digests.
// `progress` (may be null) is told bytes done and in all, from one thread at a time.
absl::StatusOr<VerifyReport> Verify(Storage& storage, std::string_view checkpoint_dir, bool digests,
                                    int io_threads,
                                    const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_VERIFY_VERIFY_H_
