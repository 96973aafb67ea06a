#ifndef TESSERA_CHECKPOINT_PLAN_SHARE_READS_H_
#define TESSERA_CHECKPOINT_PLAN_SHARE_READS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "checkpoint/plan/plan.pb.h"

namespace tessera::ckpt {

using RankList = std::vector<uint32_t>;

// Assigns reads to ranks: serialized ReadNeeds by rank -> serialized ReadShares by rank. Every byte
// that any rank needs is read by exactly one of the ranks that need it, and by no other.
// Data-parallel replicas, which need the same bytes, therefore read equal parts, and so do
// tensor-parallel ranks if their parts are adjacent in a saved shard. The meshes of the ranks are
// not an input.
//
// Pieces are assigned in the order in which ranks process them, by (begin, file), each to the one
// of its ranks with the fewest bytes to read so far.
//
// `openers` has for each file, ascending, the ranks that can read it; empty: all ranks can read all
// files. Bytes that no rank needing them can read are read by another rank that can, for the
// others.
//
// Errors: Internal for needs that cannot be parsed or do not fit the manifest, and for a needed
// file that no rank can read. Cost: n log n in the distinct ranges, plus the pieces once.
absl::StatusOr<std::vector<std::string>> ShareReads(const Manifest& manifest,
                                                    std::span<const std::string> needs,
                                                    std::span<const RankList> openers = {});

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_SHARE_READS_H_
