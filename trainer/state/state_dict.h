#ifndef TESSERA_TRAINER_STATE_STATE_DICT_H_
#define TESSERA_TRAINER_STATE_STATE_DICT_H_

#include <string>
#include <string_view>

#include "checkpoint/engine/state_dict.h"
#include "checkpoint/format/manifest.pb.h"
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

// The weights of this rank's parameters as logical tensors: shards point into parameters.values().
// A fused buffer appears as the tensors that it means, padding does not appear, a tied name becomes
// an alias.
ckpt::StateDict WeightState(const ParameterSet& parameters);

// Master weights (where there are any) and moments of what `optimizer` owns, likewise.
// Precondition: the optimizer's parameters are those of `parameters`, in order.
ckpt::StateDict OptimizerTensors(const ParameterSet& parameters, const AdamW& optimizer);

// Which tensors are whose optimizer state, and the groups' settings. Names every parameter of
// `parameters`, whatever part of it the optimizer owns.
ckpt::OptimizerState OptimizerNames(const ParameterSet& parameters, const AdamW& optimizer,
                                    const OptimizerConfig& config);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_STATE_DICT_H_
