#ifndef TESSERA_TRAINER_STATE_STATE_HEALTH_H_
#define TESSERA_TRAINER_STATE_STATE_HEALTH_H_

// Measures whether a state is worth keeping, which its checkpoint records.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "checkpoint/include/manifest.h"
#include "comm/communicator.h"
#include "trainer/state/state_chunks.h"

namespace tessera {

// Returns whether all elements of these tensors on this rank are finite. Reads every element once;
// tensors of integers pass.
bool IsFinite(const ckpt::StateDict& state);

// Returns whether a training loss is finite and of a plausible size: an untrained model has about
// ln(vocab_size), a diverged one many times as much.
bool IsSaneLoss(double loss, int64_t vocab_size);

// Measures the state of all ranks. Collective over `world` (null for one process). The losses are
// the same on every rank; `validation_loss` was measured at this very step.
absl::StatusOr<ckpt::StateHealth> MeasureHealth(StateChunks chunks, Communicator* world,
                                                double last_loss, int64_t vocab_size,
                                                std::optional<double> validation_loss);

}  // namespace tessera

#endif  // TESSERA_TRAINER_STATE_STATE_HEALTH_H_
