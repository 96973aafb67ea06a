#ifndef TESSERA_CHECKPOINT_TOOLS_RANK_LAYOUT_H_
#define TESSERA_CHECKPOINT_TOOLS_RANK_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/manifest.pb.h"
#include "checkpoint/layout/topology.h"
#include "checkpoint/tools/sharding_rules.h"

namespace tessera::ckpt {

struct LayoutOptions {
  // Parts that tensor parallelism computes in; 0: as many as it has ranks. Each rank has equally
  // many, each in a buffer of its own.
  int virtual_shards = 0;
  // A vocabulary is padded to a multiple of this and of the virtual shards; 0: as the saved padding
  // suggests.
  int64_t vocabulary_multiple = 0;
  // ZeRO: elements of the buckets that are cut into a piece for each data-parallel rank.
  int64_t bucket_elements = 10'000'000;
  std::vector<SplitOverride> overrides;
};

// What every rank of a run at this topology holds of the tensors of a checkpoint: serialized
// LocalPlans, by rank, as PlanSave() wants them.
//
// A chunk of a pipeline is a range of layers; the head counts as the layers that it costs. Before
// and after the layers stand what the names say; a tied table is on both ends. Parameters and
// virtual shards lie one after the other, aligned, in one flat buffer, of whose buckets ZeRO's
// ranks own a piece each. Optimizer state is where its parameter is, in the same pieces; one that
// has another shape than its parameter is whole on every rank of the stage.
//
// Errors: InvalidArgument, one sentence: too few layers, virtual shards that are no multiple of tp,
// an override that does not fit. Precondition: a valid manifest. Cost: the tensors of a chunk, for
// each rank.
absl::StatusOr<std::vector<std::string>> LayOutRanks(const Manifest& saved,
                                                     const Topology& topology,
                                                     const LayoutOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_TOOLS_RANK_LAYOUT_H_
