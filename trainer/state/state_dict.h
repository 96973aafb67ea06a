#ifndef TESSERA_TRAINER_STATE_STATE_DICT_H_
#define TESSERA_TRAINER_STATE_STATE_DICT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/include/process_group.h"
#include "compute/kernels/backend.h"
#include "models/layers/parameter.h"
#include "tensor/tensor.h"
#include "trainer/optim/adamw.h"
#include "trainer/state/device_mirror.h"

namespace tessera {

// Names of a parameter's optimizer state in manifests and, after "<parameter>.", in data files.
inline constexpr std::string_view kMaster = "master";
inline constexpr std::string_view kExpAvg = "exp_avg";
inline constexpr std::string_view kExpAvgSq = "exp_avg_sq";

// "transformer.wte.weight.exp_avg"
std::string StateName(std::string_view parameter, std::string_view state);

// A pipeline chunk on one rank, and the optimizer of the part that the rank owns: null without
// training.
struct StateChunk {
  const ParameterSet* parameters = nullptr;
  const AdamW* optimizer = nullptr;
  // Both of all chunks of the rank; null where the state is in host memory.
  DeviceMirror* mirror = nullptr;
  Backend* backend = nullptr;
};
using StateChunks = std::span<const StateChunk>;

// The memory of a chunk's weights and optimizer state: what a mirror has to hold.
std::vector<TensorView> StateBuffers(const StateChunk& chunk);

// The weights of this rank's parameters as logical tensors: shards point into parameters.values(),
// or into the mirror's copy of it.
// A fused buffer appears as its logical tensors, the virtual shards of a tensor as boxes of it,
// padding does not appear, a tied name becomes an alias.
ckpt::StateDict WeightState(StateChunks chunks);

// Master weights (if any) and moments that the optimizers own, likewise: a range of a ZeRO owner
// appears as the boxes that it decomposes into. Precondition: an optimizer's parameters are those
// of its chunk, in order.
ckpt::StateDict OptimizerTensors(StateChunks chunks);

// The optimizer state of each parameter by name, and the groups' settings. Names every parameter of
// every rank, whichever parts the optimizers own; the same for every topology. On rank 0; other
// ranks return nothing. Collective over `group`. Precondition: there are optimizers.
absl::StatusOr<ckpt::OptimizerState> OptimizerNames(StateChunks chunks,
                                                    const OptimizerConfig& config,
                                                    ckpt::ProcessGroup& group,
                                                    absl::Duration deadline);

// Adds to each parameter what other frameworks call it according to a manifest, which may know it
// by its second name.
void KeepForeignNames(const ckpt::Manifest& manifest, ckpt::OptimizerState& names);

// The boxes of one logical tensor within a range of a parameter's local buffer.
struct LogicalShards {
  const ParameterPiece* piece = nullptr;
  std::vector<ckpt::Shard> shards;  // empty when the range misses the piece
};

// Converts elements [begin, end) of a parameter's flattened local buffer to boxes of logical
// tensors: one entry per piece, in the order of `parameter.pieces`. Padding belongs to no piece and
// is omitted. `origin` is the address of element 0 of the local buffer, or where it would be if
// only a later range of it is stored (a ZeRO owner's master weights and moments);
// `element_size_bytes` is the size of one element in the memory at `origin`.
std::vector<LogicalShards> ShardsOfRange(const Parameter& parameter, int64_t begin, int64_t end,
                                         void* origin, int64_t element_size_bytes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_STATE_DICT_H_
