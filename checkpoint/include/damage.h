#ifndef TESSERA_CHECKPOINT_INCLUDE_DAMAGE_H_
#define TESSERA_CHECKPOINT_INCLUDE_DAMAGE_H_

// Errors that say which bytes of a checkpoint are damaged, for those who look at them again. The
// parts are a payload of the absl::Status, which an agreement of ranks keeps, with the ranks added.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::ckpt {

// Bytes [begin_bytes, end_bytes) of a file; none of them: the file as such, which is missing or has
// another size. No file: somewhere in the checkpoint.
struct DamagedPart {
  std::string file;  // in the checkpoint's directory
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = 0;
  int rank = -1;  // that found it; -1: not agreed upon by the ranks

  bool operator==(const DamagedPart&) const = default;
};

// Whether a status may be that of damage: NotFound or DataLoss. Only these carry parts.
bool MayBeDamage(const absl::Status& status);

// Adds the parts, without their ranks, to an error that may be one of damage and has none; returns
// any other status as it is. Adds the first eight: these prove the damage.
absl::Status WithDamagedParts(absl::Status status, std::vector<DamagedPart> parts);

// The parts that were added; nullopt where it is not known to be damage of a checkpoint.
std::optional<std::vector<DamagedPart>> FindDamagedParts(const absl::Status& status);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_INCLUDE_DAMAGE_H_
