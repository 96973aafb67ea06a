#ifndef TESSERA_CHECKPOINT_VERIFY_VERIFY_H_
#define TESSERA_CHECKPOINT_VERIFY_VERIFY_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"
#include "checkpoint/verify/options.h"

namespace tessera::ckpt {

// See Verify() in checkpoint.h.
absl::StatusOr<VerifyReport> VerifyCheckpoint(Storage& storage, std::string_view checkpoint_dir,
                                              const VerifyOptions& options);

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_VERIFY_VERIFY_H_
