#ifndef TESSERA_TRAINER_STATE_STATE_DICT_H_
#define TESSERA_TRAINER_STATE_STATE_DICT_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "models/layers/parameter.h"
#include "trainer/optim/adamw.h"

namespace tessera {

// Names of a parameter's optimizer state, as they stand in manifests and, behind "<parameter>.", in
// data files.
inline constexpr std::string_view kMaster = "master";
inline constexpr std::string_view kExpAvg = "exp_avg";
inline constexpr std::string_view kExpAvgSq = "exp_avg_sq";

// "transformer.wte.weight.exp_avg"
std::string StateName(std::string_view parameter, std::string_view state);

// A pipeline chunk as one rank holds it, and the optimizer of what the rank owns of it: null where
// nothing is trained.
struct StateChunk {
  const ParameterSet* parameters = nullptr;
  const AdamW* optimizer = nullptr;
};
using StateChunks = std::span<const StateChunk>;

// The weights of this rank's parameters as logical tensors: shards point into parameters.values().
// A fused buffer appears as the tensors that it means, the virtual shards of a tensor as boxes of
// it, padding does not appear, a tied name becomes an alias.
ckpt::StateDict WeightState(StateChunks chunks);

// Master weights (where there are any) and moments of what the optimizers own, likewise: a range of
// a ZeRO owner as the boxes that it decomposes into. Precondition: an optimizer's parameters are
// those of its chunk, in order.
ckpt::StateDict OptimizerTensors(StateChunks chunks);

// Which tensors are whose optimizer state, and the groups' settings. Names every parameter of every
// rank, whatever parts the optimizers own; the same whatever the topology. On rank 0; other ranks
// return nothing. Collective over `group`. Precondition: there are optimizers.
absl::StatusOr<ckpt::OptimizerState> OptimizerNames(StateChunks chunks,
                                                    const OptimizerConfig& config,
                                                    ckpt::ProcessGroup& group,
                                                    absl::Duration deadline);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_STATE_DICT_H_
