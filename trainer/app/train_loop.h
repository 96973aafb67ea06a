#ifndef TESSERA_TRAINER_APP_TRAIN_LOOP_H_
#define TESSERA_TRAINER_APP_TRAIN_LOOP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/app/session.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"
#include "trainer/state/run_saver.h"

namespace tessera {

// Runs optimizer steps: trains, reports, evaluates, saves. Every rank of a run has its own loop,
// and all do the same.
class TrainLoop {
 public:
  // `session` (with something to train) must outlive the loop, which updates its progress.
  // `progress_line` prints for the user.
  TrainLoop(Session& session, ProgressLine& progress_line);

  // Trains up to train_iters, or until exit_interval or a stop signal to any rank ends the run.
  // Saves every save_interval steps and after the last one; a run that is ended by a signal makes
  // no additional save. Errors: those of data, ranks, checkpoint and metrics.
  absl::Status Run();

  // The signal that ended Run(), the same on every rank; 0 if there was none.
  int stopped_by() const { return stopped_by_; }

 private:
  absl::Status Train();
  absl::StatusOr<StepMetrics> TrainStep();
  absl::Status Report(const StepMetrics& metrics);
  absl::Status Evaluate();
  absl::Status Export();
  absl::Status Save();
  // Reports finished saves. An asynchronous save that failed is a message, not an error: training
  // can continue.
  void ReportSaves(const std::vector<SaveOutcome>& outcomes);
  // Waits for saves in flight; returns the newest one's error.
  absl::Status FinishSaves();
  bool AtInterval(int64_t interval) const;

  Session& session_;
  const TrainConfig& config_;
  ProgressLine& progress_line_;
  std::optional<RateMeter> rates_;  // set by Run()
  int64_t saved_step_ = -1;
  absl::Status last_save_;
  int stopped_by_ = 0;
};

// Mean loss over the first samples of the validation data, timed. Collective, as Trainer::Evaluate.
absl::StatusOr<EvalMetrics> EvaluateSession(const Session& session);

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_TRAIN_LOOP_H_
