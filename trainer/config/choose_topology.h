#ifndef TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_
#define TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_

#include "absl/status/statusor.h"
#include "layout/topology.h"
#include "models/config/config.pb.h"
#include "trainer/config/validate_topology.h"

namespace tessera {

// The topology for a job that was given `world_size` ranks, more or fewer than `wanted` has.
// Chooses among those into which the model and its batches can be split (ValidateTopology), in this
// order of preference:
// 1. as many ranks per replica of the model (tensor * pipeline) as wanted, with data parallelism
//    for the rest; if that is impossible, the nearest ratio, preferring more ranks to fewer, which
//    would need more memory;
// 2. the tensor size nearest to the wanted one, preferring smaller ones;
// 3. virtual stages as wanted, otherwise none.
// The ZeRO stage is kept; sequence parallelism is used wherever the tensor axis has several ranks.
//
// InvalidArgument if no topology works, naming the nearest smaller number of ranks that does, and
// the nearest larger one within twice `world_size`. `exact_tp_shards` as for ValidateTopology.
absl::StatusOr<Topology> ChooseTopology(const Topology& wanted, int world_size,
                                        const ModelConfig& model, const BatchSizes& batch,
                                        int exact_tp_shards);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_
