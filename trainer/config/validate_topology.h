#ifndef TESSERA_TRAINER_CONFIG_VALIDATE_TOPOLOGY_H_
#define TESSERA_TRAINER_CONFIG_VALIDATE_TOPOLOGY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "layout/topology.h"
#include "models/config/config.pb.h"

namespace tessera {

// How the samples of a step are split.
struct BatchSizes {
  int64_t micro_batch = 1;
  int64_t global_batch = 1;
  int64_t sequence_length = 1;
};

// Whether a model (resolved) and its batches can be split like this, in EXACT numerics with
// `exact_tp_shards` virtual shards, or, where that is 0, in FAST ones. InvalidArgument: one
// sentence that names the inconsistent settings, and both sizes.
absl::Status ValidateTopology(const Topology& topology, const ModelConfig& model,
                              const BatchSizes& batch, int exact_tp_shards = 0);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_VALIDATE_TOPOLOGY_H_
