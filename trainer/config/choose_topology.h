#ifndef TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_
#define TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "layout/topology.h"
#include "models/config/config.pb.h"

namespace tessera {

// The sizes into which the samples of a step are split.
struct BatchSizes {
  int64_t micro_batch = 1;
  int64_t global_batch = 1;
  int64_t sequence_length = 1;
};

// Checks whether a model (resolved) and its batches can be split like this, in EXACT numerics with
// `exact_tp_shards` virtual shards or, if it is 0, in FAST numerics. InvalidArgument: one sentence
// that names the inconsistent settings and both sizes.
absl::Status ValidateTopology(const Topology& topology, const ModelConfig& model,
                              const BatchSizes& batch, int exact_tp_shards = 0);

// Chooses the topology of a job that was given `world_size` ranks, more or fewer than `wanted` has.
// The model and its batches must be splittable into it (ValidateTopology). In order of preference:
// 1. as many ranks per replica of the model (tensor * pipeline) as wanted, with data parallelism
//    for the rest. If that is impossible, the nearest ratio, preferring more ranks to fewer, which
//    would need more memory;
// 2. the tensor size nearest to the wanted one, preferring smaller ones;
// 3. virtual stages as wanted, otherwise none.
// The ZeRO stage is kept; sequence parallelism is used wherever the tensor axis has several ranks.
//
// `exact_tp_shards` as for ValidateTopology(). InvalidArgument if no topology works, naming the
// nearest smaller number of ranks that does, and the nearest larger one within twice `world_size`.
absl::StatusOr<Topology> ChooseTopology(const Topology& wanted, int world_size,
                                        const ModelConfig& model, const BatchSizes& batch,
                                        int exact_tp_shards);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_
