#ifndef TESSERA_TRAINER_APP_MEASUREMENTS_H_
#define TESSERA_TRAINER_APP_MEASUREMENTS_H_

// What a rank measures of itself.

#include "absl/status/statusor.h"
#include "trainer/app/session.h"
#include "trainer/app/step_agreement.h"
#include "trainer/metrics/metrics.h"

namespace tessera {

// Returns the memory that this process, and its GPU, use.
UsedMemory MeasureMemory(const Session& session);

// Returns whether exit_duration_in_mins has passed since the process began, its start included.
bool TimeIsUp(const Session& session);

// Returns what the rates of a run are computed from. Measures the speed of all ranks, unless all
// steps have less than 10^11 floating-point operations: then the peak is unknown. Collective.
absl::StatusOr<RateMeter::Options> RateOptions(const Session& session);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_MEASUREMENTS_H_
