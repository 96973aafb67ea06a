#ifndef TESSERA_CHECKPOINT_LOAD_VERIFY_LOADED_H_
#define TESSERA_CHECKPOINT_LOAD_VERIFY_LOADED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/include/process_group.h"
#include "checkpoint/load/compare.h"

namespace tessera::ckpt {

struct LoadedDigests {
  int64_t verified = 0;                 // tensors
  std::vector<std::string> unverified;  // names with the reasons
};

// Makes the load compute digests while placing, if possible: if elements keep their dtype and the
// elements of a row are contiguous in memory.
void DigestWhilePlacing(const Manifest& manifest, Comparison& comparison);

// Verifies that the memory of all ranks holds the saved elements. Every rank knows the digests of
// its boxes from placing them, or computes them in place. Digests of distinct boxes must add up to
// the digest in the manifest, and digests of replicas must be equal. Boxes of different ranks that
// overlap in part are digested again, in parts that do not overlap.
//
// `unverified` lists the tensors that cannot be verified: they were converted, the ranks hold only
// a part of them, or the manifest has no digest.
//
// Errors: DataLoss, naming the tensor and, if they are known, the ranks. Collective; every
// rank returns the same status. Bytes on the wire: some tens from each rank to rank 0 for each of
// its boxes. Cost: one pass over the memory whose digests are not known, in `threads` threads.
absl::StatusOr<LoadedDigests> VerifyLoaded(const Manifest& manifest, const Comparison& comparison,
                                           ProcessGroup& group, int threads,
                                           absl::Duration timeout);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_VERIFY_LOADED_H_
