#ifndef TESSERA_CHECKPOINT_PLAN_SHARE_READS_H_
#define TESSERA_CHECKPOINT_PLAN_SHARE_READS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/plan/plan.pb.h"

namespace tessera::ckpt {

// Who reads what, and for whom: serialized ReadNeeds by rank -> serialized ReadShares by rank.
// Every byte that anybody needs is read by exactly one of the ranks that need it, and by no other;
// so the replicas of data parallelism, who need the same, read an equal part each, and so do the
// ranks of tensor parallelism where their parts lie side by side in a saved shard. Nobody is told
// what the ranks' meshes are.
//
// Pieces are given out in the order in which ranks go through them, by (begin, file), each to that
// of its ranks which has the least to read so far.
//
// Errors: Internal for needs that cannot be parsed or do not fit the manifest.
// Cost: n log n in the distinct ranges, and the pieces once.
absl::StatusOr<std::vector<std::string>> ShareReads(const Manifest& manifest,
                                                    std::span<const std::string> needs);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_SHARE_READS_H_
