#ifndef TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
#define TESSERA_TRAINER_APP_STEP_AGREEMENT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "trainer/metrics/metrics.h"
#include "trainer/parallel/mesh.h"

namespace tessera {

// The result of an agreement after a step, the same on each rank.
struct StepAgreement {
  int stop_signal = 0;              // SIGINT or SIGTERM, when some rank got one; else 0
  double pipeline_wait_share = -1;  // mean over ranks; negative without a pipeline
  std::vector<WireBytes> wire;  // sent by all ranks since the last agreement; empty for one rank
};

// `stop_signal` and `pipeline_wait_share`: this rank's. Collective; one all-reduce of about 500
// bytes.
absl::StatusOr<StepAgreement> AgreeOnStep(Mesh& mesh, int stop_signal, double pipeline_wait_share);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_STEP_AGREEMENT_H_
