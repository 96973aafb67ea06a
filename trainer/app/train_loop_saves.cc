// The saves, replicas and exports of the training loop, and what it reports of them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "base/units.h"
#include "checkpoint/include/checkpoint.h"
#include "checkpoint/include/manifest.h"
#include "trainer/app/session.h"
#include "trainer/app/train_loop.h"
#include "trainer/config/config.h"
#include "trainer/metrics/metrics.h"
#include "trainer/state/foreign_weights.h"
#include "trainer/state/run_state.h"
#include "trainer/state/save_storage.h"
#include "trainer/state/state_health.h"

namespace tessera {

bool TrainLoop::IsToReplicate() const {
  return Saves(config_) && config_.checkpoint().replicate_to_peers() &&
         decision_.end == ckpt::EndReason::kNone && healthy_ &&
         AtInterval(config_.checkpoint().replicate_interval());
}

absl::Status TrainLoop::Export(const std::vector<ForeignWeights>& due) {
  if (due.empty()) return absl::OkStatus();
  const TimeSpent spent(TimeUse::kSaving);
  const TraceSpan span("save", "export of weights");
  const int64_t step = session_.progress.step;
  ReportSaves(session_.saver->Finish());
  for (const ForeignWeights& weights : due) {
    const absl::Status written =
        healthy_ ? ExportWeights(session_, weights)
                 : absl::AbortedError(absl::StrCat("no weights written to ", weights.path,
                                                   ": step ", step, " was skipped, or its loss ",
                                                   "is not plausible"));
    if (!written.ok()) {
      Happened("not_exported", step, std::string(written.message()));
      // If ranks no longer reach each other, this is the end.
      TESSERA_RETURN_IF_ERROR(Agree(absl::OkStatus()));
      continue;
    }
    if (weights.format == "hf") session_.hf_step = step;
    progress_line_.Message("weights written to " + weights.path);
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::Keep(bool replicates) {
  const TimeSpent spent(TimeUse::kSaving);
  const TraceSpan span("save", "begin of a save");
  const Progress& progress = session_.progress;
  ckpt::Manifest run = DescribeRun(config_, config_.model(), progress, session_.data_identity(),
                                   session_.numerics());
  // No resume would take a state that is not finite, or a later one.
  TESSERA_ASSIGN_OR_RETURN(*run.mutable_trainer()->mutable_health(), MeasureState());
  // Neither the state nor the loss tells that no step updates it.
  if (HasDiverged()) run.mutable_trainer()->mutable_health()->set_loss_is_sane(false);
  if (decision_.save != ckpt::SaveKind::kNone) {
    if (decision_.saves_unhealthy) unhealthy_save_ = progress.step;
    TESSERA_RETURN_IF_ERROR(session_.saver->Save(run, decision_.save));
    ReportSaves(session_.saver->Poll());
  }
  if (replicates) session_.saver->Replicate(std::move(run));
  return absl::OkStatus();
}

absl::StatusOr<ckpt::StateHealth> TrainLoop::MeasureState() {
  const Progress& progress = session_.progress;
  std::optional<double> validation_loss;
  if (evaluation_.has_value() && evaluation_->step == progress.step) {
    validation_loss = evaluation_->loss;
  }
  TESSERA_ASSIGN_OR_RETURN(
      const ckpt::StateHealth health,
      MeasureHealth(session_.state(), session_.mesh->world(), progress.last_loss,
                    config_.model().vocab_size(), validation_loss));
  state_is_finite_ = health.state_is_finite();
  if (state_is_finite_) return health;
  return Diverged(absl::StrFormat("the state of step %d is not finite", progress.step));
}

// Prints one sentence for each change from success to failure or back: replicas are frequent.
void TrainLoop::ReportReplicas(const std::vector<ckpt::SaveOutcome>& outcomes) {
  for (const ckpt::SaveOutcome& outcome : outcomes) {
    const absl::Status& status = outcome.report.status();
    if (status.ok()) {
      AddScalars(outcome.step,
                 {{"replica/seconds", absl::ToDoubleSeconds(outcome.report->duration)}});
    }
    if (std::exchange(last_replica_, status.code()) == status.code()) continue;
    if (status.ok()) {
      Happened("replicated", outcome.step,
               absl::StrFormat("step %d is in memory: %s in %.2f s; so are later ones",
                               outcome.step, HumanBytes(outcome.report->bytes_written),
                               absl::ToDoubleSeconds(outcome.report->duration)));
    } else {
      Happened("not_replicated", outcome.step,
               absl::StrCat("step ", outcome.step, " is not replicated: ",
                            absl::IsCancelled(status)
                                ? "the replica before is still being written; a larger "
                                  "--replicate-interval costs less"
                                : status.message()));
    }
  }
}

void TrainLoop::ReportSaves(const std::vector<ckpt::SaveOutcome>& outcomes) {
  const TimeSpent spent(TimeUse::kSaving);
  for (const ckpt::SaveOutcome& outcome : outcomes) {
    if (const absl::Status& status = outcome.report.status(); !status.ok()) {
      Happened("not_saved", outcome.step,
               absl::StrCat("step ", outcome.step, " is not saved: ",
                            absl::IsCancelled(status) ? "an earlier save is still being written"
                                                      : status.message()));
      continue;
    }
    kept_step_ = std::max(kept_step_, outcome.step);
    if (outcome.step != unhealthy_save_) good_saves_.push_back(outcome.step);
    const auto& report = *outcome.report;
    const std::string slot = report.directory.substr(0, report.directory.find('/'));
    Happened(
        "saved", outcome.step,
        absl::StrFormat("saved step %d%s: %s in %.2f s", outcome.step,
                        slot == report.directory ? "" : " in " + slot,
                        HumanBytes(report.bytes_written), absl::ToDoubleSeconds(report.duration)),
        &report);
    if (!report.note.empty()) progress_line_.Message(report.note);
    if (const absl::Status recorded = RecordSave(outcome.step, report); !recorded.ok()) {
      progress_line_.Message(absl::StrFormat("step %d is saved, but not recorded: %s", outcome.step,
                                             std::string(recorded.message())));
    }
  }
}

absl::Status TrainLoop::RecordSave(int64_t step, const ckpt::SaveReport& report) {
  if (session_.saves == nullptr) return absl::OkStatus();
  AddScalars(step, {{"save/seconds", absl::ToDoubleSeconds(report.duration)},
                    {"save/bytes", static_cast<double>(report.bytes_written)}});
  TESSERA_ASSIGN_OR_RETURN(const ckpt::Manifest manifest, session_.saver->Saved(report.directory));
  TESSERA_ASSIGN_OR_RETURN(const Progress progress, ReadProgress(manifest));
  return session_.saves->Write(RecordOf(manifest, progress));
}

absl::Status TrainLoop::FinishSaves() {
  ReportSaves(session_.saver->Finish());
  ReportReplicas(session_.saver->FinishReplicas());
  return manager_.last_save();
}

absl::Status TrainLoop::CheckSaves() {
  const TimeSpent spent(TimeUse::kSaving);
  const absl::Status trouble = DescribeTrouble();
  Agree(absl::OkStatus()).IgnoreError();
  return trouble;
}

absl::Status TrainLoop::DescribeTrouble() {
  if (decision_.trouble == ckpt::SaveTrouble::kNoRoom) return FinishSaves();
  const absl::Status error = manager_.ErrorOf(decision_.trouble);
  if (!absl::IsAborted(error)) return error;
  return absl::AbortedError(absl::StrCat(
      error.message(), "; the same command resumes from the newest checkpoint once it can save"));
}

absl::Status TrainLoop::SaveOnException(const absl::Status& error) {
  const int64_t step = session_.progress.step;
  const auto with = [&](const std::string& sentence) {
    return absl::Status(error.code(), absl::StrCat(error.message(), "; ", sentence));
  };
  if (!ends_together_) {
    constexpr char kNothing[] =
        "nothing is saved (--save-on-exception): the ranks have not agreed on this error before an "
        "update";
    // If a rank is gone, the error of the run is what the communicator has found.
    progress_line_.Message(kNothing);
    return with(kNothing);
  }
  ReportSaves(session_.saver->Finish());
  if (kept_step_ == step)
    return with(absl::StrCat("there is nothing newer to save than step ", step));
  decision_.save = ckpt::SaveKind::kPermanent;
  decision_.end = ckpt::EndReason::kProgram;
  absl::Status saved = Keep(/*replicates=*/false);
  if (saved.ok()) saved = FinishSaves();
  Agree(absl::OkStatus()).IgnoreError();
  if (saved.ok()) return with(absl::StrCat("step ", step, " is saved (--save-on-exception)"));
  return with(absl::StrCat("step ", step, " is not saved: ",
                           state_is_finite_ ? saved.message() : "its state is not finite"));
}

}  // namespace tessera
