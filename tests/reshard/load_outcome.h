#ifndef TESSERA_TESTS_RESHARD_LOAD_OUTCOME_H_
#define TESSERA_TESTS_RESHARD_LOAD_OUTCOME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/logical_state.h"
#include "trainer/config/config.pb.h"
#include "trainer/state/run_state.h"

namespace tessera::testing {

// The outcome of one load of a checkpoint, on all ranks together.
struct LoadOutcome {
  LogicalState state;
  Progress progress;
  std::vector<std::string> notes;  // of rank 0
  uint64_t bytes_needed = 0;       // over all ranks, each reading alone
  uint64_t bytes_read = 0;         // over all ranks
  uint64_t stored_bytes = 0;       // of the checkpoint's data files
  uint64_t largest_buffer_bytes = 0;
  int64_t tensor_bytes = 0;  // that tensors took beyond what the ranks held before
};

// Saves to `folder` a run of `config` at `progress`, with threads as ranks, whose tensors hold a
// function of the seed. Returns the gathered tensors.
absl::StatusOr<LogicalState> SaveFilled(TrainConfig config, const std::string& folder,
                                        const Progress& progress, uint64_t seed);

// Builds a run of `config` with threads as ranks, and loads the newest checkpoint of one folder
// after the other into it, as a resumed run does. Every element is changed before each load.
// Internal if ranks disagree about an element or progress, if an element is missing, or if padding
// is touched.
absl::StatusOr<std::vector<LoadOutcome>> LoadAll(const TrainConfig& config,
                                                 const std::vector<std::string>& folders);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_RESHARD_LOAD_OUTCOME_H_
