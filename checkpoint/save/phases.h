#ifndef TESSERA_CHECKPOINT_SAVE_PHASES_H_
#define TESSERA_CHECKPOINT_SAVE_PHASES_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/errno_status.h"

namespace tessera::ckpt {

// The phases of a save, as named in error messages.
inline constexpr absl::string_view kPlanning = "planning";
inline constexpr absl::string_view kStaging = "staging";
inline constexpr absl::string_view kWriting = "writing";
inline constexpr absl::string_view kSyncing = "syncing";
inline constexpr absl::string_view kCommitting = "committing";

inline absl::Status InPhase(absl::string_view phase, const absl::Status& status) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(phase, ": ", status.message()));
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_SAVE_PHASES_H_
