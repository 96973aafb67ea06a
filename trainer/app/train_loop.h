#ifndef TESSERA_TRAINER_APP_TRAIN_LOOP_H_
#define TESSERA_TRAINER_APP_TRAIN_LOOP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"
#include "trainer/app/evaluate.h"
#include "trainer/app/session.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"
#include "trainer/tensor/tensor.h"

namespace tessera {

// One optimizer step after the other: read, forward and backward for each micro-batch, clip,
// update, report, evaluate, save.
class TrainLoop {
 public:
  // `session` (with something to train) must outlive the loop; its progress moves on.
  // `progress_line` is where a person looks; `metrics` may be null.
  TrainLoop(Session& session, ProgressLine& progress_line, MetricsWriter* metrics);

  // Trains up to train_iters, or until exit_interval or a stop signal ends the run. Saves every
  // save_interval steps and after the last one; a run that a signal ends saves nothing more than it
  // has. Errors: those of data, checkpoint and metrics.
  absl::Status Run();

 private:
  absl::StatusOr<StepMetrics> TrainStep();
  // Sum of the token losses of the global batch; leaves the gradients of its mean.
  absl::StatusOr<double> ForwardBackward();
  absl::Status Report(const StepMetrics& metrics);
  absl::Status Evaluate();
  absl::Status Save();
  bool AtInterval(int64_t interval) const;

  Session& session_;
  const TrainConfig& config_;
  ProgressLine& progress_line_;
  MetricsWriter* const metrics_;
  RateMeter rates_;
  Tensor ids_;                     // int32 [B,T]
  Tensor targets_;                 // int32 [B,T]
  std::vector<TensorView> grads_;  // by parameter
  std::unique_ptr<Evaluator> evaluator_;
  int64_t saved_step_ = -1;
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_TRAIN_LOOP_H_
