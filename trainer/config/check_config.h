#ifndef TESSERA_TRAINER_CONFIG_CHECK_CONFIG_H_
#define TESSERA_TRAINER_CONFIG_CHECK_CONFIG_H_

// Reports contradictions between the fields of a config, in sentences that name the fields and
// their values.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/config.pb.h"
#include "trainer/config/problems.h"
#include "trainer/config/topology.h"

namespace tessera {

// Checks a config as it was given: no number of any group may be negative or non-finite. Other
// requirements of a field are checked with its group.
void CheckRanges(const TrainConfig& config, Problems& problems);

// Checks the parallel settings of a config. Precondition: its declared defaults are set.
absl::Status CheckParallel(const ParallelConfig& parallel);

// Checks the rest. Precondition: all defaults are set, and the model is resolved.
void CheckResolved(const TrainConfig& config, Problems& problems);

// Steps by their numbers, from 1, both included.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
};
// Reads trace_steps: "100-103", or "100" for one step.
absl::StatusOr<StepRange> ParseTraceSteps(const std::string& text);

BatchSizes Batches(const TrainingConfig& training);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_CHECK_CONFIG_H_
