#ifndef TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_
#define TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_

// A run of the trainer that continues from another framework's checkpoint, all ranks in one
// process.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/manifest.h"
#include "tests/support/logical_state.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/checkpoints.h"

namespace tessera::testing {

// The checkpoint in `folder`, or in a file, whose format is found out. `model` may be null: it is
// that of state dicts that do not describe theirs.
absl::StatusOr<SavedRun> OpenForeignRun(const std::string& folder,
                                        const ckpt::ModelConfig* model = nullptr);

// The complete state of an fp32 run in a safetensors file, or in those of a folder, whose keys are
// logical names. Master weights ("<name>.master") take the place of rounded weights.
absl::StatusOr<LogicalState> ReadFp32State(const std::string& path);

struct ContinuedRun {
  LogicalState state;          // as loaded
  std::vector<double> losses;  // of the next two steps
};

// Loads weights and, where there is one, the optimizer's state on all ranks of the topology of
// `config`, which is resolved, and takes two steps.
absl::StatusOr<ContinuedRun> ContinueRun(const SavedRun& saved, const TrainConfig& config);

// The same from a complete state after `step` updates, without any checkpoint. Moments that it
// lacks are zero.
absl::StatusOr<ContinuedRun> ContinueRun(const LogicalState& state, int64_t step,
                                         const TrainConfig& config);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_
