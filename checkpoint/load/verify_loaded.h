#ifndef TESSERA_CHECKPOINT_LOAD_VERIFY_LOADED_H_
#define TESSERA_CHECKPOINT_LOAD_VERIFY_LOADED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/collective/process_group.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/load/compare.h"

namespace tessera::ckpt {

struct LoadedDigests {
  int64_t verified = 0;                 // tensors
  std::vector<std::string> unverified;  // names with the reason
};

// Makes the load take the digests of what it places, wherever it can: where elements keep their
// dtype, and those of a row lie side by side in memory.
void DigestWhilePlacing(const Manifest& manifest, Comparison& comparison);

// Whether what all ranks have in memory after a load is what was saved: every rank knows the
// digests of its boxes from their placing, or digests them where they lie; those of distinct boxes
// add up to the one that the manifest says, and those of replicas are equal. Boxes of different
// ranks that overlap in part are digested once more, in parts that do not.
//
// Of a tensor that was converted, that the ranks together hold a part of only, or for which the
// manifest has no digest, nothing is known: it is in `unverified`.
//
// DataLoss, naming the tensor and what is known of the ranks. Collective; every rank returns the
// same. Bytes on the wire: some tens for each box of each rank to rank 0. Cost: one pass over the
// memory whose digests are not known, in `threads` threads.
absl::StatusOr<LoadedDigests> VerifyLoaded(const Manifest& manifest, const Comparison& comparison,
                                           ProcessGroup& group, int threads,
                                           absl::Duration deadline);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_LOAD_VERIFY_LOADED_H_
