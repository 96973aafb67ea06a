#ifndef TESSERA_TRAINER_CONFIG_CHECK_CONFIG_H_
#define TESSERA_TRAINER_CONFIG_CHECK_CONFIG_H_

// Checks for contradictions between the fields of a config, reported in sentences that name the
// fields and their values.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/choose_topology.h"
#include "trainer/config/config.pb.h"
#include "trainer/config/problems.h"

namespace tessera {

// Checks that no number of any group of a config, as it was given, is negative or non-finite.
void CheckRanges(const TrainConfig& config, Problems& problems);

// Checks the parallel settings of a config. Precondition: its declared defaults are set.
absl::Status CheckParallel(const ParallelConfig& parallel);

// Checks all other requirements of a config. Precondition: all defaults are set, and the model is
// resolved.
void CheckResolved(const TrainConfig& config, Problems& problems);

// A range of steps, by their numbers from 1, both included.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
};
// Reads trace_steps: "100-103", or "100" for one step.
absl::StatusOr<StepRange> ParseTraceSteps(const std::string& text);

BatchSizes Batches(const TrainingConfig& training);

}  // namespace tessera

#endif  // TESSERA_TRAINER_CONFIG_CHECK_CONFIG_H_
