#ifndef TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_
#define TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_

// A run of the trainer that continues from another framework's checkpoint, all ranks in one
// process.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/exact/logical_state.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/checkpoints.h"

namespace tessera::testing {

// The checkpoint in `folder`, whose format is found out.
absl::StatusOr<SavedRun> OpenForeignRun(const std::string& folder);

struct ContinuedRun {
  LogicalState state;          // as loaded
  std::vector<double> losses;  // of the next two steps
};

// Loads weights and optimizer on all ranks of the topology of `config`, which is resolved, and
// takes two steps.
absl::StatusOr<ContinuedRun> ContinueRun(const SavedRun& saved, const TrainConfig& config);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_INTEROP_FOREIGN_RUN_H_
