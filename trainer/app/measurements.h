#ifndef TESSERA_TRAINER_APP_MEASUREMENTS_H_
#define TESSERA_TRAINER_APP_MEASUREMENTS_H_

// What a rank measures of itself.

#include <optional>

#include "absl/status/statusor.h"
#include "trainer/app/session.h"
#include "trainer/app/step_agreement.h"
#include "trainer/metrics/metrics.h"
#include "trainer/step/trainer.h"

namespace tessera {

// Returns the memory that this process, and its GPU, use.
UsedMemory MeasureMemory(const Session& session);

// Returns whether exit_duration_in_mins has passed since the process began, its start included.
bool TimeIsUp(const Session& session);

// Returns the mean loss over the first samples of the validation data, and its time; nullopt if it
// was stopped. Collective, as Trainer::Evaluate().
absl::StatusOr<std::optional<EvalMetrics>> EvaluateSession(const Session& session,
                                                           const StopEvaluation& stop = nullptr);

// Returns what the rates of a run are computed from. Measures the speed of all ranks, unless all
// steps have less than 10^11 floating-point operations: then the peak is unknown. Collective.
absl::StatusOr<RateMeter::Options> RateOptions(const Session& session);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_MEASUREMENTS_H_
