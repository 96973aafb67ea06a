#ifndef TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_
#define TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_

#include "absl/status/statusor.h"
#include "models/config/config.pb.h"
#include "trainer/config/validate_topology.h"
#include "trainer/parallel/topology.h"

namespace tessera {

// The topology for a job that was given `world_size` ranks, more or fewer than `wanted` has. Of
// those that the model and its batches can be split by (ValidateTopology), in this order of
// preference:
//   1. as many ranks share a replica of the model (tensor * pipeline) as wanted, data parallelism
//      takes up the rest; where that does not go, the nearest ratio, rather more than fewer, which
//      would need more memory;
//   2. the tensor size nearest to the wanted one, rather smaller;
//   3. virtual stages as wanted, else none.
// The ZeRO stage stays, sequence parallelism wherever the tensor axis has several ranks.
//
// InvalidArgument where there is none, with the nearest number of ranks below that would do, and
// the nearest above within twice `world_size`. `exact_tp_shards` as for ValidateTopology.
absl::StatusOr<Topology> ChooseTopology(const Topology& wanted, int world_size,
                                        const ModelConfig& model, const BatchSizes& batch,
                                        int exact_tp_shards);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_CHOOSE_TOPOLOGY_H_
