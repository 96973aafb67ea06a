#ifndef TESSERA_CHECKPOINT_INTERNAL_DAMAGE_H_
#define TESSERA_CHECKPOINT_INTERNAL_DAMAGE_H_

// Errors that name the damaged bytes of a checkpoint, so that they can be examined again. The parts
// are a payload of the absl::Status; AgreeOnStatus() keeps them and adds the ranks.
//
// Implemented in checkpoint/directory/damage.cc.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::ckpt {

// Bytes [begin_bytes, end_bytes) of a file. An empty range stands for the file itself, which is
// missing or has another size; an empty file for an unknown place in the checkpoint.
struct DamagedPart {
  std::string file;  // in the checkpoint's directory
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = 0;
  int rank = -1;  // the rank that found it; -1: the ranks have not agreed on the error

  bool operator==(const DamagedPart&) const = default;
};

// Returns whether a status may mean damage: NotFound or DataLoss. Only these carry parts.
bool MayBeDamage(const absl::Status& status);

// Adds the first eight parts, which suffice to prove the damage, without their ranks, to an error
// that may mean damage and has no parts. Returns any other status unchanged.
absl::Status WithDamagedParts(absl::Status status, std::vector<DamagedPart> parts);

// Returns the parts that were added; nullopt if the status is not known to mean damage of a
// checkpoint.
std::optional<std::vector<DamagedPart>> FindDamagedParts(const absl::Status& status);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INTERNAL_DAMAGE_H_
