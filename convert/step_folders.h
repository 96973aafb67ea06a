#ifndef TESSERA_CONVERT_STEP_FOLDERS_H_
#define TESSERA_CONVERT_STEP_FOLDERS_H_

// The folders of a run's checkpoints.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/storage.h"

namespace tessera::ckpt::convert {

// A folder of a run, named by its step in the way of another framework: checkpoint-500,
// checkpoint_step_000500, global_step500, iter_0000500, step-500, step_500, 500.
struct StepFolder {
  int64_t step = 0;
  std::string name;
};

// Returns the step folders directly in the storage's root, the newest first; of one step, by name.
// Errors: those of Storage::List().
absl::StatusOr<std::vector<StepFolder>> ListStepFolders(Storage& storage);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_STEP_FOLDERS_H_
