#ifndef TESSERA_OPERATIONS_RANK_LAYOUT_H_
#define TESSERA_OPERATIONS_RANK_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.pb.h"
#include "layout/topology.h"
#include "operations/partition_rules.h"

namespace tessera::ckpt {

struct LayoutOptions {
  std::vector<PartitionRule> rules;
  // Number of parts into which tensor parallelism cuts a tensor, if it exceeds the number of ranks:
  // each rank has equally many parts, and each part is a box of its own. 0: as many as ranks.
  int virtual_shards = 0;
};

struct RankLayout {
  // Serialized RankStates, by rank, for PlanSave().
  std::vector<std::string> ranks;
  int guessed = 0;  // tensors whose cut is a guess that matters at this topology
};

// Chooses the boxes of a checkpoint's tensors that each rank of a run at `topology` should write,
// so that a run at that topology reads few, long ranges of few files. A rank writes the boxes that
// it is expected to read, but nothing relies on that.
//
// A tensor is on the pipeline stage of its layer (see LayersOfChunk; a head counts as the layers
// that it costs), or on the stage at its end of the model. Tied tensors, and tensors whose place is
// unknown, are on the first stage. Each tensor-parallel rank has its part of each section. Weights
// are on every data-parallel rank. With ZeRO, optimizer state is cut by rows, and each
// data-parallel rank has one run of neighbouring tensors.
//
// Errors: InvalidArgument, one sentence: too many ranks, too few layers, virtual shards that are
// not a multiple of tp, a rule that does not fit. Precondition: a valid manifest. Cost: the tensors
// of a stage, for each rank.
absl::StatusOr<RankLayout> LayOutRanks(const Manifest& saved, const Topology& topology,
                                       const LayoutOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_OPERATIONS_RANK_LAYOUT_H_
