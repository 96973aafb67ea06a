#ifndef TESSERA_CONVERT_CORE_KNOWN_STEP_H_
#define TESSERA_CONVERT_CORE_KNOWN_STEP_H_

#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt::convert {

// Name of the entry that marks a trainer's state whose step is unknown, because the state was made
// of files that do not record it.
inline constexpr char kUnknownStepEntry[] = "unknown_step";

// Returns whether the manifest records the step of the training.
inline bool TellsStep(const Manifest& manifest) {
  return manifest.has_trainer() && !manifest.trainer().extra().contains(kUnknownStepEntry);
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_KNOWN_STEP_H_
