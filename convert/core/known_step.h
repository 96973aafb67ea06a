#ifndef TESSERA_CONVERT_CORE_KNOWN_STEP_H_
#define TESSERA_CONVERT_CORE_KNOWN_STEP_H_

#include "checkpoint/include/manifest.pb.h"

namespace tessera::ckpt::convert {

// An entry of a trainer's state whose step is not known: it was made of files that do not tell it,
// and has other entries.
inline constexpr char kUnknownStepEntry[] = "unknown_step";

// Whether the manifest tells the step of the training.
inline bool TellsStep(const Manifest& manifest) {
  return manifest.has_trainer() && !manifest.trainer().extra().contains(kUnknownStepEntry);
}

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_CORE_KNOWN_STEP_H_
