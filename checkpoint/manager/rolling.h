#ifndef TESSERA_CHECKPOINT_MANAGER_ROLLING_H_
#define TESSERA_CHECKPOINT_MANAGER_ROLLING_H_

// Rolling checkpoints: frequent ones of which only the last two are kept, beside the permanent ones
// of the same run. Each of two slots is a folder of its own that holds one ordinary checkpoint:
//
//   step-00000200/            permanent
//   rolling-0/step-00000250/
//   rolling-1/step-00000225/  replaced next
//
// Where directories cannot be renamed, as in object stores, each attempt at a save has a folder in
// its slot, so that what another attempt has left need not be deleted before:
//
//   rolling-0/1a2b3c4d/step-00000250/
//
// The slot that is replaced is emptied before the new checkpoint is written. The other one stays
// complete meanwhile.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::ckpt {

inline constexpr std::array<std::string_view, 2> kRollingSlots = {"rolling-0", "rolling-1"};

// Steps of the committed checkpoints in the slots; nullopt: the slot has none.
using RollingSteps = std::array<std::optional<int64_t>, kRollingSlots.size()>;

// Index of the slot for the next checkpoint: one without a checkpoint, else the older one.
inline int ChooseRollingSlot(const RollingSteps& steps) {
  return steps[1] < steps[0] ? 1 : 0;  // nullopt is less than any step
}

// "1a2b3c4d": the folder of a new attempt.
std::string MakeRollingAttempt();

bool IsRollingAttempt(std::string_view name);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_MANAGER_ROLLING_H_
