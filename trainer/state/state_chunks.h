#ifndef TESSERA_TRAINER_STATE_STATE_CHUNKS_H_
#define TESSERA_TRAINER_STATE_STATE_CHUNKS_H_

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

// Returns "transformer.wte.weight.exp_avg".
std::string StateName(std::string_view parameter, std::string_view state);

// A pipeline chunk on one rank, and the optimizer of the rank's part, which is null without
// training.
struct StateChunk {
  const ParameterSet* parameters = nullptr;
  const AdamW* optimizer = nullptr;
  // The mirror of all chunks of the rank; null if the state is in host memory.
  DeviceMirror* mirror = nullptr;
  Backend* backend = nullptr;
};
using StateChunks = std::span<const StateChunk>;

// Returns the memory of a chunk's weights and optimizer state, which a mirror has to hold.
std::vector<TensorView> StateBuffers(const StateChunk& chunk);

// Returns the weights of this rank's parameters as logical tensors, whose shards point into
// parameters.values() or into the mirror's copy of it. A fused buffer becomes its logical tensors,
// the virtual shards of a tensor become boxes of it, a tied name becomes an alias, and padding is
// left out.
ckpt::StateDict WeightState(StateChunks chunks);

// Returns the master weights (if any) and moments that the optimizers own as logical tensors; a
// range of a ZeRO owner becomes boxes. Precondition: an optimizer has the parameters of its chunk,
// in order.
ckpt::StateDict OptimizerTensors(StateChunks chunks);

// Returns the names of the optimizer state of each parameter, and the groups' settings, on rank 0,
// and nothing on other ranks. Names every parameter of every rank, whichever parts the optimizers
// own; the same for every topology. Collective over `group`. Precondition: there are optimizers.
absl::StatusOr<ckpt::OptimizerState> OptimizerNames(StateChunks chunks,
                                                    const OptimizerConfig& config,
                                                    ckpt::ProcessGroup& group,
                                                    absl::Duration timeout);

// Adds to each parameter its names in other frameworks from a manifest, which may know the
// parameter by its second name.
void KeepForeignNames(const ckpt::Manifest& manifest, ckpt::OptimizerState& names);

// The boxes of one logical tensor within a range of a parameter's local buffer.
struct LogicalShards {
  const ParameterPiece* piece = nullptr;
  std::vector<ckpt::Shard> shards;  // empty when the range misses the piece
};

// Converts elements [begin, end) of a parameter's flattened local buffer to boxes of logical
// tensors: one entry per piece, in the order of `parameter.pieces`. Padding belongs to no piece and
// is omitted. `origin` is the address of element 0 of the local buffer, or where it would be if
// only a later range of it is stored (a ZeRO owner's master weights and moments).
// `element_size_bytes` is the size of one element in the memory at `origin`.
std::vector<LogicalShards> ShardsOfRange(const Parameter& parameter, int64_t begin, int64_t end,
                                         void* origin, int64_t element_size_bytes);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_STATE_CHUNKS_H_
