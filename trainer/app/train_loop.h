#ifndef TESSERA_TRAINER_APP_TRAIN_LOOP_H_
#define TESSERA_TRAINER_APP_TRAIN_LOOP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/include/async_saver.h"
#include "checkpoint/include/manifest.h"
#include "checkpoint/internal/job_saves.h"
#include "trainer/app/session.h"
#include "trainer/app/step_agreement.h"
#include "trainer/app/timeline.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/metrics.h"
#include "trainer/metrics/progress.h"
#include "trainer/state/foreign_weights.h"
#include "trainer/state/run_saver.h"

namespace tessera {

// The training loop of a rank: runs optimizer steps, reports, evaluates and saves. Every rank of a
// run has its own loop, and all do the same.
class TrainLoop {
 public:
  // `session` (with something to train) must outlive the loop, which updates its progress.
  // `progress_line` prints for the user.
  TrainLoop(Session& session, ProgressLine& progress_line);

  // Trains up to train_iters, or until a stop signal to any rank, a stop file or another setting
  // ends the run; see ckpt::CheckpointManager. Saves when it is time, and after the last step.
  // Errors: those of data, ranks and checkpoint; those of metrics, after a save; Aborted for a run
  // that has diverged. With save_on_exception, an error on which all ranks agree before a step
  // changes anything ends the run with a save of the last whole step; any other error says that
  // nothing is saved.
  absl::Status Run();

  // Returns the signal that ended Run(), the same on every rank; 0 if there was none.
  int stopped_by() const { return decision_.stop_signal; }

 private:
  absl::Status Train();
  absl::StatusOr<StepMetrics> TrainStep();
  // Returns how this rank has spent the time since the last call.
  TimeSplit TakeTimeSplit();
  absl::Status Report(const StepMetrics& metrics);
  // Evaluates, if it is time. With `may_stop`, in a run that saves at signals, a signal stops the
  // evaluation. The run then saves and ends at this step, and the next process evaluates it.
  absl::Status Evaluate(bool may_stop);
  // Returns whether a signal has stopped the evaluation. Collective.
  absl::StatusOr<bool> IsStopped();
  // Copies new records of metrics.jsonl to the event file.
  void FollowRecords();
  void AddScalars(int64_t step, const std::map<std::string, double>& by_tag);
  // Ends the event file, with a message, but not the run, if `status` is an error.
  void CheckEvents(const absl::Status& status);
  // Makes the exports that are due at this step, once the saves in flight are done. Reports one
  // that fails, or that an unhealthy step prevents, without ending the run. Collective.
  absl::Status Export(const std::vector<ForeignWeights>& due);
  // Reports what has ended the run, if it was not its last step.
  void SayEnd();
  // Returns whether the state is replicated in memory after this step.
  bool IsToReplicate() const;
  // Saves and replicates, as decided.
  absl::Status Keep(bool replicates);
  void ReportReplicas(const std::vector<ckpt::SaveOutcome>& outcomes);
  // Reports finished saves. An asynchronous save that failed is a message, not an error, since
  // training can continue as far as CheckSaves() allows.
  void ReportSaves(const std::vector<ckpt::SaveOutcome>& outcomes);
  // Writes a new checkpoint to the records, if there are any.
  absl::Status RecordSave(int64_t step, const ckpt::SaveReport& report);
  // Reports an event and, on rank 0, records it.
  void Happened(const std::string& name, int64_t step, const std::string& text,
                const ckpt::SaveReport* saved = nullptr);
  // Returns one error on all ranks if `mine` is an error on any rank. The first rank that ends
  // aborts the calls of the others, so ranks that end with something to report meet here first.
  // Collective.
  absl::Status Agree(const absl::Status& mine) const;
  // Returns an error, after every rank has reported its saves, if all ranks have decided that the
  // run can save no more. Collective.
  absl::Status CheckSaves();
  // Returns the error for the trouble of the last decision.
  absl::Status DescribeTrouble();
  // Waits for saves in flight; returns the newest one's error.
  absl::Status FinishSaves();
  // Returns the error of rank 0's metrics.jsonl, which ends the run one step later, on every rank,
  // and each names the cause. Collective.
  absl::Status CheckRecords() const;
  // Returns whether the run ends because the gradients of too many steps were not finite.
  bool HasDiverged() const;
  // Returns the health of the state; Aborted if that is not finite. Collective.
  absl::StatusOr<ckpt::StateHealth> MeasureState();
  // Returns Aborted if the state is not finite, or training does not recover from the last loss.
  // Collective.
  absl::Status CheckNotDiverged();
  // Returns the error of a run that has diverged because of `reason`, which all ranks have found in
  // the same step. Collective.
  absl::Status Diverged(const std::string& reason);
  // Returns what a run that has diverged may resume from, as far as this process knows: it asks no
  // storage, which may hang.
  std::string AdviceAfterDivergence() const;
  bool AtInterval(int64_t interval) const {
    return interval > 0 && session_.progress.step % interval == 0;
  }
  // With save_on_exception, returns one error on all ranks if `mine` is an error on any rank, so
  // that all ranks end together. Collective.
  absl::Status EndTogether(const absl::Status& mine);
  // Saves the last whole step if the ranks end together with `error`. Returns the error, which also
  // says what is saved.
  absl::Status SaveOnException(const absl::Status& error);

  Session& session_;
  const TrainConfig& config_;
  const std::string ledger_settings_;  // their digest
  ProgressLine& progress_line_;
  std::optional<RateMeter> rates_;      // set by Run()
  std::unique_ptr<EventFile> events_;   // set by Run(); null without metrics, and once it fails
  std::unique_ptr<Timeline> timeline_;  // set by Run(); null without trace_steps
  absl::Duration time_split_at_;        // of the last TakeTimeSplit(), of SteadyNow()
  ckpt::JobSaves& manager_;
  ckpt::JobDecision decision_;   // after the last step
  bool time_is_up_ = false;      // on rank 0, when ranks decided last
  bool healthy_ = true;          // the last step changed the state, with a plausible loss
  bool state_is_finite_ = true;  // when it was measured last
  // Whether all ranks have the same error, with the state of the last whole step.
  bool ends_together_ = false;
  int64_t kept_step_;                      // the last one that is in a checkpoint
  std::vector<int64_t> good_saves_;        // steps of checkpoints of healthy states
  int64_t unhealthy_save_ = -1;            // the last step that was saved and not healthy
  int64_t healthy_step_ = 0;               // the last one whose loss was plausible
  std::optional<EvalMetrics> evaluation_;  // the last one
  absl::StatusCode last_replica_ = absl::StatusCode::kUnknown;  // its outcome; unknown: none yet
};

}  // namespace tessera

#endif  // TESSERA_TRAINER_APP_TRAIN_LOOP_H_
